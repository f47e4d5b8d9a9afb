package examine

import "testing"

// TestOlderComparesWithinTheLine requires that a fix counts for its own line of versions, and for all later lines.
func TestOlderComparesWithinTheLine(t *testing.T) {
	older := Older("version", "3.4.42", "3.5.28", "3.6.9")
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.41": true, "3.4.42": false, "3.5.0": true, "3.5.27": true, "3.5.28": false,
		"3.6.8": true, "3.6.9-rc.1": false, "3.6.10": false, "3.7.0": false, "4.0.0": false, "v3.4.2": true,
		"": false, "unknown": false,
	} {
		if got := older(Facts{"version": version}) != ""; got != want {
			t.Errorf("%q is older: %t, want %t", version, got, want)
		}
	}
}

// TestEvidenceNamesTheServer requires one finding for a check, with the evidence of each server that fails it.
func TestEvidenceNamesTheServer(t *testing.T) {
	table := Table{Breaks("a", "", "", "", Is("a", "off")), Costs("b", "", "", "", IsNot("b", "on"))}
	found := table.Find(Facts{Where: "one", "a": "OFF"}, Facts{Where: "two", "a": "off", "b": "on"}, Facts{Where: "three"})
	if len(found) != 1 || found[0].Name != "a" || found[0].Evidence != "one: a is OFF; two: a is off" {
		t.Errorf("%+v", found)
	}
}
