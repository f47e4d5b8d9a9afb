//go:build linux || darwin

package main_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
)

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs", name))
	must(t, err)
	return string(b)
}

var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

// examples returns the fenced blocks of a page, by the text after the opening fence.
func examples(t *testing.T, name string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range fence.FindAllStringSubmatch(page(t, name), -1) {
		all[m[1]] = m[2]
	}
	return all
}

// keys returns the KEY=VALUE lines of one section of an INI file.
func keys(ini, section string) map[string]string {
	found, in := map[string]string{}, section == ""
	for line := range strings.Lines(ini) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			in = line == "["+section+"]"
		} else if key, value, ok := strings.Cut(line, "="); ok && in && line[0] != '#' {
			found[key] = value
		}
	}
	return found
}

// deployed is a machine on which an example has been installed.
type deployed struct {
	*sandbox
	bin string
}

func newDeployed(t *testing.T) *deployed {
	d := &deployed{sandbox: newSandbox(t)}
	d.bin = d.path("bin")
	must(t, os.Mkdir(d.bin, 0o700))
	must(t, os.Symlink(binary, filepath.Join(d.bin, "holdfast")))
	d.file("bin/report", "#!/bin/sh\necho \"report of $HOLDFAST_NAME with $*\"\n")
	d.file("store", d.storeURL()+"\n")
	return d
}

// here replaces the paths in an example by the test's own paths.
func (d *deployed) here(s string) string {
	return strings.NewReplacer("/usr/local/bin", d.bin, "/etc/holdfast/store", d.path("store"),
		"/home/reports/.config/holdfast/store", d.path("store")).Replace(s)
}

// holds runs the job of an example twice.
func (d *deployed) holds(job func() *exec.Cmd) {
	d.t.Helper()
	first := d.startCmd(job(), nil)
	first.stdout.expect("report of nightly-report with --all")
	second := d.startCmd(job(), nil)
	if got := second.status(); got != 0 || second.stdout.all() != "" {
		d.t.Errorf("the second: status %d, and %q, %q", got, second.stdout.all(), second.stderr.all())
	}
	var all struct{ Locks []listed }
	decode(d.t, d.run("ls", "--json", "--store", d.storeURL()), &all)
	if len(all.Locks) != 1 || all.Locks[0].Name != "nightly-report" || !all.Locks[0].Held {
		d.t.Fatalf("after the report: %+v", all)
	}
	if got := first.status(); got != 0 {
		d.t.Errorf("the first: status %d: %s", got, first.stderr.all())
	}
}

// TestEntrypointRunsUnderLock runs the entrypoint as the first process of a PID namespace.
func TestEntrypointRunsUnderLock(t *testing.T) {
	d := newDeployed(t)
	var argv []string
	for line := range strings.Lines(examples(t, "deploy.md")["dockerfile Dockerfile"]) {
		if words, ok := strings.CutPrefix(line, "ENTRYPOINT "); ok {
			must(t, json.Unmarshal([]byte(words), &argv))
		}
		if variable, ok := strings.CutPrefix(strings.TrimSpace(line), "ENV "); ok {
			d.env = append(d.env, d.here(variable))
		}
	}
	d.env = append(d.env, "PATH="+d.bin+":"+os.Getenv("PATH"))
	argv = asFirst(t, argv...)
	r := d.finish(exec.Command(argv[0], argv[1:]...), nil, "").expectStatus(t, 0)
	if r.stdout != "report of nightly-report with --all\n" {
		t.Errorf("output: %q", r.stdout)
	}
}

// TestHoldExamplesHoldLock runs the scripts of the page that call hold.
func TestHoldExamplesHoldLock(t *testing.T) {
	d := newDeployed(t)
	d.env = append(d.env, "PATH="+d.bin+":"+os.Getenv("PATH"), "HOLDFAST_STORE="+d.storeURL())
	for _, title := range []string{"sh hold", "sh subshell"} {
		r := d.finish(exec.Command("sh", "-c", examples(t, "command.md")[title]), nil, "").expectStatus(t, 0)
		contains(t, r.stdout, "report with token ")
		d.run("run", "--wait", waitLimit().String(), "nightly", "--", "true").expectStatus(t, 0)
	}
}

// TestSystemdUnitRunsUnderLock runs the systemd unit's command, and systemd verifies the
// units.
func TestSystemdUnitRunsUnderLock(t *testing.T) {
	d := newDeployed(t)
	blocks := examples(t, "deploy.md")
	service, timer := blocks["ini nightly-report.service"], blocks["ini nightly-report.timer"]
	if keys(timer, "Timer")["OnCalendar"] == "" || keys(timer, "Install")["WantedBy"] != "timers.target" {
		t.Errorf("timer:\n%s", timer)
	}
	s := keys(d.here(service), "Service")
	if strings.ContainsAny(s["ExecStart"], `"'\$%`) {
		t.Fatalf("this test splits at spaces only: %s", s["ExecStart"])
	}
	argv := strings.Fields(s["ExecStart"])
	d.env = append(d.env, s["Environment"])
	d.holds(func() *exec.Cmd { return exec.Command(argv[0], argv[1:]...) })

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: the units are not verified")
	}
	path := d.file("nightly-report.service", d.here(service))
	out, err := exec.Command(analyze, "verify", "--man=no", path, d.file("nightly-report.timer", timer),
		d.file("scheduler.service", d.here(blocks["ini scheduler.service"]))).CombinedOutput()
	// systemd-analyze also reports on the installed units that these depend on.
	if strings.Contains(string(out), "nightly-report") || strings.Contains(string(out), "scheduler.service") || err != nil && len(out) == 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCrontabRunsUnderLock runs the crontab's command like cron.
func TestCrontabRunsUnderLock(t *testing.T) {
	d := newDeployed(t)
	tab := d.here(examples(t, "deploy.md")["crontab"])
	entry := regexp.MustCompile(`(?m)^(?:[\d*/,-]+ ){5}(.*)$`).FindStringSubmatch(tab)
	if entry == nil || strings.Contains(entry[1], "%") {
		t.Fatalf("no entry that cron would run whole:\n%s", tab)
	}
	d.env = []string{"HOME=" + d.home, "SHELL=/bin/sh"}
	for key, value := range keys(tab, "") {
		if !strings.Contains(key, " ") {
			d.env = append(d.env, key+"="+value)
		}
	}
	d.holds(func() *exec.Cmd { return exec.Command("/bin/sh", "-c", entry[1]) })
}

// TestCronJobRunsUnderLock runs the command of the Kubernetes CronJob's container.
func TestCronJobRunsUnderLock(t *testing.T) {
	d := newDeployed(t)
	var job struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Spec       struct {
			Schedule    string
			JobTemplate struct {
				Spec struct {
					Template struct {
						Spec struct {
							RestartPolicy string `yaml:"restartPolicy"`
							Containers    []struct {
								Command      []string
								Env          []struct{ Name, Value string }
								VolumeMounts []struct {
									Name, MountPath string
								} `yaml:"volumeMounts"`
							}
							Volumes []struct {
								Name   string
								Secret struct {
									SecretName string `yaml:"secretName"`
								}
							}
						}
					}
				}
			} `yaml:"jobTemplate"`
		}
	}
	must(t, yaml.Unmarshal([]byte(d.here(examples(t, "deploy.md")["yaml nightly-report.yaml"])), &job))
	pod := job.Spec.JobTemplate.Spec.Template.Spec
	if job.APIVersion != "batch/v1" || job.Kind != "CronJob" || len(strings.Fields(job.Spec.Schedule)) != 5 || pod.RestartPolicy != "Never" ||
		len(pod.Containers) != 1 || len(pod.Volumes) != 1 || pod.Volumes[0].Secret.SecretName == "" ||
		len(pod.Containers[0].VolumeMounts) != 1 || pod.Containers[0].VolumeMounts[0].Name != pod.Volumes[0].Name {
		t.Fatalf("%+v", job)
	}
	c := pod.Containers[0]
	for _, e := range c.Env {
		d.env = append(d.env, e.Name+"="+e.Value)
	}
	d.env = append(d.env, "PATH="+d.bin+":"+os.Getenv("PATH"))
	d.holds(func() *exec.Cmd { return exec.Command(filepath.Join(d.bin, c.Command[0]), c.Command[1:]...) })
}

// TestDeploymentKeepsItsPromises: the Deployment's probes have the paths that the program on the page serves.
// A pod may end for longer than Drain and Close need, and has neither a right nor a token that it does not use.
func TestDeploymentKeepsItsPromises(t *testing.T) {
	type probe struct {
		HTTPGet struct {
			Path string
			Port int
		} `yaml:"httpGet"`
	}
	var d struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Spec       struct {
			Replicas int
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Template struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Mount           *bool `yaml:"automountServiceAccountToken"`
					Grace           int   `yaml:"terminationGracePeriodSeconds"`
					SecurityContext struct {
						RunAsNonRoot bool `yaml:"runAsNonRoot"`
					} `yaml:"securityContext"`
					Containers []struct {
						Liveness        probe `yaml:"livenessProbe"`
						Readiness       probe `yaml:"readinessProbe"`
						SecurityContext struct {
							Escalation *bool                   `yaml:"allowPrivilegeEscalation"`
							ReadOnly   bool                    `yaml:"readOnlyRootFilesystem"`
							Drop       struct{ Drop []string } `yaml:"capabilities"`
						} `yaml:"securityContext"`
					}
				}
			}
		}
	}
	blocks := examples(t, "deploy.md")
	must(t, yaml.Unmarshal([]byte(blocks["yaml scheduler.yaml"]), &d))
	pod := d.Spec.Template.Spec
	if d.APIVersion != "apps/v1" || d.Kind != "Deployment" || d.Spec.Replicas < 2 || len(pod.Containers) != 1 ||
		!maps.Equal(d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels) {
		t.Fatalf("%+v", d)
	}
	c := pod.Containers[0]
	for _, p := range []probe{c.Liveness, c.Readiness} {
		if !strings.Contains(blocks["go"], `mux.HandleFunc("`+p.HTTPGet.Path+`", `) || p.HTTPGet.Port != 8080 {
			t.Errorf("the program does not serve %+v", p.HTTPGet)
		}
	}
	if c.Liveness == c.Readiness {
		t.Error("the liveness depends on the store")
	}
	if pod.Grace <= 70 {
		t.Errorf("a grace of %d s is shorter than Drain and Close", pod.Grace)
	}
	if pod.Mount == nil || *pod.Mount || !pod.SecurityContext.RunAsNonRoot || c.SecurityContext.Escalation == nil ||
		*c.SecurityContext.Escalation || !c.SecurityContext.ReadOnly || !slices.Equal(c.SecurityContext.Drop.Drop, []string{"ALL"}) {
		t.Errorf("the pod has rights that it does not use: %+v", pod)
	}
}

// TestCommandPageIsComplete: docs/command.md describes every subcommand and JSON field. The help has the flags.
func TestCommandPageIsComplete(t *testing.T) {
	text := page(t, "command.md")
	for _, c := range cli.Command().Commands() {
		if c.IsAvailableCommand() && !strings.Contains(text, "## holdfast "+c.Name()+"\n") {
			t.Errorf("no section on %s", c.Name())
		}
	}
	w := withStore(t)
	w.hold("x")
	w.waitFor("x", "in line")
	for _, args := range [][]string{{"ls", "--json"}, {"show", "--json", "x"}, {"stores", "--json", w.storeURL()}, {"stores", "--json", "memory://"}, {"version", "--json"}} {
		var v any
		decode(t, w.run(args...), &v)
		documented(t, v)
	}
	p := w.start("watch", "--json", "x")
	for range 2 {
		var v any
		must(t, json.Unmarshal([]byte(p.stdout.expect(`{"time"`)), &v))
		documented(t, v)
	}
}
