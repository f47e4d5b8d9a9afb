package s3store

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/conditional"
	"github.com/holdfast-go/holdfast/internal/examine"
)

var checks = examine.Table{
	examine.Breaks("lifecycle", "no rule that deletes the objects of locks",
		"a lock that is kept or not renewed for a day, and each value, are forgotten",
		"limit the rule to another prefix", examine.Given("lifecycle")),
	examine.Costs("versioning", "a bucket without versioning, or a rule that deletes old versions",
		"each lock, release and renewal leaves a version that is never deleted",
		"suspend versioning, or add NoncurrentVersionExpiration", examine.Given("versioning")),
	examine.Unreadable("allow s3:GetLifecycleConfiguration and s3:GetBucketVersioning"),
}

// Checks implements driver.Examiner.
func (b *bucket) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner. No client can see whether a cache answers reads later.
func (b *bucket) Examine(ctx context.Context) ([]driver.Finding, error) {
	if err := b.proved(ctx); err != nil {
		return nil, err
	}
	var set struct{ Status string }
	var rules lifecycle
	f := examine.Facts{}
	for what, to := range map[string]any{"versioning": &set, "lifecycle": &rules} {
		err := b.configuration(ctx, what, to)
		if err != nil && driver.CodeOf(err) != driver.CodeRefused {
			return nil, err
		} else if err != nil {
			f.AddUnread("%s: %v", what, err)
		}
	}
	f["lifecycle"] = rules.deletes(b.prefix)
	if set.Status == "Enabled" && !rules.deletesOld(b.prefix) {
		f["versioning"] = "versioning is Enabled"
	}
	return checks.Find(f), nil
}

// configuration reads a configuration of the bucket. A server without that feature has none.
func (b *bucket) configuration(ctx context.Context, what string, to any) error {
	resp, err := conditional.Send(ctx, b.client, http.MethodGet, b.root+"?"+what+"=", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return xml.NewDecoder(resp.Body).Decode(to)
	case http.StatusNotFound, http.StatusNotImplemented:
		return nil
	case http.StatusForbidden:
		return driver.Errorf(driver.CodeRefused, "%s", resp.Status)
	}
	return conditional.Refused(resp, driver.CodeUnavailable)
}

// lifecycle has the rules of a bucket, as GetBucketLifecycleConfiguration returns them.
type lifecycle struct {
	Rule []rule
}

// rule applies to objects with the prefixes and the tags. The objects of locks have no tags.
type rule struct {
	ID, Status  string
	Prefix      string
	InFilter    string     `xml:"Filter>Prefix"`
	InAnd       string     `xml:"Filter>And>Prefix"`
	Tags        []struct{} `xml:"Filter>Tag"`
	TagsInAnd   []struct{} `xml:"Filter>And>Tag"`
	Days        string     `xml:"Expiration>Days"`
	Date        string     `xml:"Expiration>Date"`
	OldVersions *struct{}  `xml:"NoncurrentVersionExpiration"`
}

// enabled returns the rules that apply to objects without tags, with the prefix of each.
func (l lifecycle) enabled(yield func(prefix string, r rule) bool) {
	for _, r := range l.Rule {
		if r.Status == "Enabled" && len(r.Tags)+len(r.TagsInAnd) == 0 && !yield(r.Prefix+r.InFilter+r.InAnd, r) {
			return
		}
	}
}

// deletes returns the rules that delete objects of locks with a prefix. What follows the prefix has no slash.
func (l lifecycle) deletes(prefix string) (evidence string) {
	for of, r := range l.enabled {
		rest, within := strings.CutPrefix(of, prefix)
		if r.Days+r.Date != "" && (strings.HasPrefix(prefix, of) || within && !strings.Contains(rest, "/")) {
			evidence += fmt.Sprintf("rule %q deletes objects of %s* (days: %s, date: %s) ", r.ID, of, r.Days, r.Date)
		}
	}
	return evidence
}

// deletesOld reports whether a rule deletes the old versions of all objects of locks with a prefix.
func (l lifecycle) deletesOld(prefix string) bool {
	for of, r := range l.enabled {
		if r.OldVersions != nil && strings.HasPrefix(prefix, of) {
			return true
		}
	}
	return false
}
