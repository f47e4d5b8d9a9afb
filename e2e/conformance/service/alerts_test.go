package service

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// alertTests are rule tests of promtool. Each series has one value every 15 s.
const alertTests = `
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - name: the first loss of a process alerts
    interval: 15s
    input_series:
      - series: 'holdfast_losses_total{holdfast_store_kind="redis", holdfast_cause="expired"}'
        values: '0 0 1 1'
    alert_rule_test:
      - {eval_time: 15s, alertname: LockLost}
      - eval_time: 30s
        alertname: LockLost
        exp_alerts:
          - exp_labels: {holdfast_store_kind: redis, holdfast_cause: expired}
            exp_annotations: {summary: A lock was lost; its work may have run twice.}
  - name: a failed renewal alerts before the loss of a lock with a TTL of 30 s
    interval: 15s
    input_series:
      - series: 'holdfast_renewals_total{holdfast_store_kind="redis", holdfast_outcome="failed"}'
        values: '0 0 1 3 3 3 3 3 3'
    alert_rule_test:
      - eval_time: 30s
        alertname: RenewalsFail
        exp_alerts:
          - exp_labels: {holdfast_store_kind: redis}
            exp_annotations: {summary: The store does not renew locks; they are lost when their TTL ends.}
      - {eval_time: 2m, alertname: RenewalsFail}
  - name: a store that does not answer alerts after two minutes
    interval: 15s
    input_series:
      - series: 'holdfast_acquire_duration_seconds_count{holdfast_outcome="unavailable"}'
        values: '0+1x20'
    alert_rule_test:
      - {eval_time: 1m, alertname: StoreUnavailable}
      - eval_time: 3m
        alertname: StoreUnavailable
        exp_alerts:
          - exp_annotations: {summary: The store of the locks does not answer.}
  - name: a long wait alerts
    interval: 15s
    input_series:
      - series: holdfast_wait_longest_seconds
        values: '600 615'
    alert_rule_test:
      - {eval_time: 0s, alertname: LongWait}
      - eval_time: 15s
        alertname: LongWait
        exp_alerts:
          - exp_annotations: {summary: A goroutine has waited for a lock for ten minutes.}
  - name: a service without failures does not alert
    interval: 15s
    input_series:
      - series: 'holdfast_losses_total{holdfast_store_kind="redis", holdfast_cause="expired"}'
        values: '0x40'
      - series: 'holdfast_renewals_total{holdfast_store_kind="redis", holdfast_outcome="failed"}'
        values: '0x40'
      - series: 'holdfast_renewals_total{holdfast_store_kind="redis", holdfast_outcome="renewed"}'
        values: '0+2x40'
      - series: 'holdfast_acquire_duration_seconds_count{holdfast_outcome="busy"}'
        values: '0+5x40'
      - series: holdfast_wait_longest_seconds
        values: '0x20 30x20'
    alert_rule_test:
      - {eval_time: 10m, alertname: LockLost}
      - {eval_time: 10m, alertname: RenewalsFail}
      - {eval_time: 10m, alertname: StoreUnavailable}
      - {eval_time: 10m, alertname: LongWait}
`

// TestAlertsFireInTime runs the alerts of docs/observe.md in Prometheus' own rule tests.
func TestAlertsFireInTime(t *testing.T) {
	promtool, err := servers.Find("promtool")
	servertest.Started(t, err)
	page, err := os.ReadFile("../../../docs/observe.md")
	must.Succeed(t, err)
	rules := regexp.MustCompile("(?s)```yaml alerts\n(.*?)```").FindSubmatch(page)
	if rules == nil {
		t.Fatal("docs/observe.md has no alerts")
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"rules.yml": rules[1], "tests.yml": []byte(alertTests)} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	c := exec.Command(promtool, "test", "rules", "tests.yml")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
