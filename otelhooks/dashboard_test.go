package otelhooks_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/otelhooks"
)

// names collects the instruments that the hooks make, as Prometheus names them.
type names struct {
	noop.MeterProvider
	series map[string]bool
}

func (n names) Meter(string, ...metric.MeterOption) metric.Meter { return nameMeter{names: n} }

type nameMeter struct {
	noop.Meter
	names names
}

func (m nameMeter) add(name string, suffixes ...string) {
	for _, s := range suffixes {
		m.names.series[strings.ReplaceAll(name, ".", "_")+s] = true
	}
}

func (m nameMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	unit := metric.NewFloat64HistogramConfig(o...).Unit()
	m.add(name, map[string]string{"s": "_seconds"}[unit])
	return m.Meter.Float64Histogram(name, o...)
}

func (m nameMeter) Int64UpDownCounter(name string, o ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	m.add(name, "")
	return m.Meter.Int64UpDownCounter(name, o...)
}

func (m nameMeter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	m.add(name, "_total")
	return m.Meter.Int64Counter(name, o...)
}

func (m nameMeter) Int64ObservableGauge(name string, o ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	m.add(name, "")
	return m.Meter.Int64ObservableGauge(name, o...)
}

func (m nameMeter) Float64ObservableGauge(name string, o ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	m.add(name, "_seconds")
	return m.Meter.Float64ObservableGauge(name, o...)
}

// TestDashboardShowsEveryMetric: docs/grafana.json is JSON, and names the metrics that the
// hooks report, all of them and no others.
func TestDashboardShowsEveryMetric(t *testing.T) {
	n := names{series: map[string]bool{}}
	if _, err := otelhooks.New(otelhooks.WithMeterProvider(n)); err != nil {
		t.Fatal(err)
	}
	if _, err := otelhooks.Conflicts(otelhooks.WithMeterProvider(n)); err != nil {
		t.Fatal(err)
	}
	if len(n.series) < 7 {
		t.Fatalf("%v", n.series)
	}
	text, err := os.ReadFile("../docs/grafana.json")
	must.Succeed(t, err)
	var dashboard struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must.Succeed(t, json.Unmarshal(text, &dashboard))
	labels := map[string]bool{"holdfast_store_kind": true, "holdfast_mode": true, "holdfast_outcome": true, "holdfast_cause": true}
	shown := map[string]bool{}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 || p.Title == "" {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, word := range regexp.MustCompile(`holdfast_\w+`).FindAllString(target.Expr, -1) {
				name := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(word, "")
				switch {
				case labels[word]:
				case n.series[name]:
					shown[name] = true
				default:
					t.Errorf("panel %q: no metric or attribute is %s", p.Title, word)
				}
			}
		}
	}
	page, err := os.ReadFile("../docs/observe.md")
	must.Succeed(t, err)
	alerts := regexp.MustCompile(`(?m)^ +expr: .*$`).FindAllString(string(page), -1)
	if len(alerts) == 0 {
		t.Error("docs/observe.md has no alert")
	}
	for _, word := range regexp.MustCompile(`holdfast_\w+`).FindAllString(strings.Join(alerts, "\n"), -1) {
		if name := strings.TrimSuffix(word, "_count"); !labels[word] && !n.series[name] {
			t.Errorf("alerts: no metric or attribute is %s", word)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.series)) {
		if !shown[name] {
			t.Errorf("%s is on no panel", name)
		}
		if !strings.Contains(string(page), "`"+name) {
			t.Errorf("%s is not on docs/observe.md", name)
		}
	}
}
