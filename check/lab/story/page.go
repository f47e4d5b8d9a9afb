//go:build linux || darwin

package story

import (
	_ "embed"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
)

//go:embed page.html
var pageText string

// Page writes one page of HTML with all results, for readers without experience of locks.
// The page loads no other file.
func Page(w io.Writer, results []*Result) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"title": func(r *Result) string { return strings.ToUpper(r.Story.Title[:1]) + r.Story.Title[1:] },
		"wrong": func(r *Result) template.HTML {
			return template.HTML(r.Wrong.drawing(r.Story.Server, "the wrong lock"))
		},
		"right": func(r *Result) template.HTML { return template.HTML(r.Right.drawing(r.Story.Server, "holdfast")) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(w, results)
}

// SVG writes the drawing of a result: the wrong lock beside holdfast.
func (r *Result) SVG(w io.Writer) error {
	_, err := io.WriteString(w, r.svg())
	return err
}

// Write writes the drawings of results into a directory: NAME.svg for each, and the page
// index.html. It creates the directory if it is missing.
func Write(dir string, results []*Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	save := func(name string, draw func(io.Writer) error) error {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := draw(f); err != nil {
			return err
		}
		return f.Close()
	}
	for _, r := range results {
		if err := save(r.Story.Name+".svg", r.SVG); err != nil {
			return err
		}
	}
	return save("index.html", func(w io.Writer) error { return Page(w, results) })
}
