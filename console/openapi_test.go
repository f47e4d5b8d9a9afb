package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestOpenAPIDescribesTheAnswers calls each operation, and compares what it answers with the document that the handler
// serves: the status, the media type, and each field with its type.
func TestOpenAPIDescribesTheAnswers(t *testing.T) {
	l, err := holdfast.New(memstore.New())
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	h, err := Handler(ctx, map[string]*holdfast.Locker{"m": l}, Options{Log: slog.New(slog.DiscardHandler),
		Client: func(*http.Request) (Client, bool) { return Everything(""), true }})
	must.Succeed(t, err)
	defer func() { cancel(); _ = l.Close(context.Background()) }()
	send := func(method, path, body string) *httptest.ResponseRecorder {
		// Streams end with their context.
		limited, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer end()
		r := httptest.NewRequestWithContext(limited, method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
	}
	must.Succeed(t, json.Unmarshal(send("GET", "/v1/openapi.json", "").Body.Bytes(), &doc))
	var held struct{ ID, Token string }
	must.Succeed(t, json.Unmarshal(send("POST", "/v1/grants/held", "").Body.Bytes(), &held))
	called := map[string]bool{}
	for _, c := range []struct{ method, path, template, body, status string }{
		{"GET", "/v1/openapi.json", "", "", "200"},
		{"GET", "/v1/stores", "", "", "200"},
		{"GET", "/v1/events", "", "", "200"},
		{"GET", "/v1/events?name=held", "/v1/events", "", "200"},
		{"GET", "/v1/locks", "", "", "200"},
		{"GET", "/v1/locks/held", "/v1/locks/{name}", "", "200"},
		{"POST", "/v1/locks/x", "/v1/locks/{name}", "", "200"},
		{"POST", "/v1/locks/held", "/v1/locks/{name}", `{"wait_seconds":0.05}`, "200"},
		{"POST", "/v1/locks/held", "/v1/locks/{name}", `{"wait_seconds":0}`, "409"},
		{"POST", "/v1/grants/y", "/v1/grants/{name}", `{"limit":2}`, "200"},
		{"POST", "/v1/grants/y", "/v1/grants/{name}", `{"limit":0}`, "400"},
		{"POST", "/v1/grants/z", "/v1/grants/{name}", `{} {}`, "400"},
		{"POST", "/v1/grants/z", "/v1/grants/{name}", `{}}`, "400"},
		{"POST", "/v1/grants/z", "/v1/grants/{name}", `{}]`, "400"},
		{"POST", "/v1/renew/" + held.ID, "/v1/renew/{id}", "", "200"},
		{"POST", "/v1/renew/none", "/v1/renew/{id}", "", "404"},
		{"POST", "/v1/release/" + held.ID, "/v1/release/{id}", "", "200"},
		{"POST", "/v1/break", "", `{"name":"held","token":"77","reason":"r"}`, "404"},
		{"PUT", "/v1/values/v", "/v1/values/{name}", `{"data":"aGk=","version":""}`, "200"},
		{"GET", "/v1/values/v", "/v1/values/{name}", "", "200"},
		{"POST", "/v1/guards/g", "/v1/guards/{name}", `{"token":"5"}`, "200"},
		{"POST", "/v1/guards/g", "/v1/guards/{name}", `{"token":"4"}`, "409"},
		{"POST", "/v1/sequences/s", "/v1/sequences/{name}", "", "200"},
	} {
		if c.template == "" {
			c.template = c.path
		}
		w := send(c.method, c.path, c.body)
		called[c.method+" "+c.template] = true
		media := w.Header().Get("Content-Type")
		described, ok := doc.Paths[c.template][strings.ToLower(c.method)].Responses[c.status].Content[media]
		if got := fmt.Sprint(w.Code); got != c.status || !ok {
			t.Errorf("%s %s: %s %s is not described, want %s: %s", c.method, c.path, got, media, c.status, w.Body)
			continue
		}
		if described.Schema == nil {
			continue
		}
		for text := range bytes.Lines(w.Body.Bytes()) {
			text = bytes.TrimPrefix(bytes.TrimSpace(text), []byte("data: "))
			if len(text) == 0 {
				continue
			}
			var v any
			if err := json.Unmarshal(text, &v); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			for _, problem := range differs(described.Schema, v, "") {
				t.Errorf("%s %s %s: %s", c.method, c.path, text, problem)
			}
		}
	}
	for _, rt := range routes {
		if operation := rt.method + " " + strings.ReplaceAll(rt.path, "...}", "}"); !called[operation] {
			t.Errorf("%s is not called", operation)
		}
	}
	if len(doc.Paths) == 0 {
		t.Error("no paths")
	}
}

// differs returns how a value differs from its schema.
func differs(schema map[string]any, v any, at string) (problems []string) {
	is := map[bool]string{true: "null"}[v == nil]
	switch v := v.(type) {
	case string:
		is = "string"
	case bool:
		is = "boolean"
	case float64:
		if is = "number"; v == float64(int(v)) && strings.Contains(fmt.Sprint(schema["type"]), "integer") {
			is = "integer"
		}
	case []any:
		is = "array"
		for _, e := range v {
			items, _ := schema["items"].(map[string]any)
			problems = append(problems, differs(items, e, at+"[]")...)
		}
	case map[string]any:
		is = "object"
		properties, _ := schema["properties"].(map[string]any)
		more, isMap := schema["additionalProperties"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			property, ok := properties[key].(map[string]any)
			if isMap {
				property, ok = more, true
			}
			if !ok {
				problems = append(problems, at+"."+key+" is not described")
				continue
			}
			problems = append(problems, differs(property, v[key], at+"."+key)...)
		}
		required, _ := schema["required"].([]any)
		for _, key := range required {
			if _, ok := v[key.(string)]; !ok {
				problems = append(problems, at+"."+key.(string)+" is missing")
			}
		}
	}
	allowed, many := schema["type"].([]any)
	if !many {
		allowed = []any{schema["type"]}
	}
	if !slices.Contains(allowed, any(is)) {
		problems = append(problems, fmt.Sprintf("%s is %s, want %v", at, is, allowed))
	}
	return problems
}

// TestSchemaPanicsForATypeThatItCannotDescribe: the document does not describe such a field as a string or an object.
func TestSchemaPanicsForATypeThatItCannotDescribe(t *testing.T) {
	for _, v := range []any{int64(1), time.Time{}, struct{ Value any }{}, []uint16{1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("the schema of %T: no panic", v)
				}
			}()
			schema(reflect.TypeOf(v))
		}()
	}
}

// TestValidityCountsFromTheSend: what a client may rely on ends when the handler's own validity ends, however long ago it
// has sent the request; and a tenth of the TTL before the handler gives up a grant that is not renewed.
func TestValidityCountsFromTheSend(t *testing.T) {
	l, err := holdfast.New(memstore.New())
	must.Succeed(t, err)
	defer l.Close(context.Background())
	k, err := l.Lock(t.Context(), "x", holdfast.TTL(time.Hour))
	must.Succeed(t, err)
	for _, waited := range []time.Duration{0, time.Minute, 10 * time.Hour} {
		received := time.Now().Add(-waited)
		g := &grant{lock: k}
		valid := time.Duration(g.describe(received).Valid * float64(time.Second))
		// Until when the client relies on the lock, on the handler's clock, if it has sent just before.
		if until := time.Until(received.Add(valid)); until > min(k.Remaining(), 20*time.Second) || until <= 0 {
			t.Errorf("after %s: %s, the lock is valid for %s", waited, until, k.Remaining())
		}
		g = &grant{lock: k, ttl: 10 * time.Second, until: time.Now().Add(10 * time.Second), timer: time.NewTimer(time.Hour)}
		valid = time.Duration(g.describe(received).Valid * float64(time.Second))
		if until := time.Until(received.Add(valid)); until > time.Until(g.until)-time.Second {
			t.Errorf("after %s: the grant is valid for %s, and given up in %s", waited, until, time.Until(g.until))
		}
	}
	must.Succeed(t, k.Unlock())
	if valid := (&grant{lock: k}).describe(time.Now().Add(-time.Hour)).Valid; valid > time.Hour.Seconds()+60 {
		t.Errorf("an ended lock is valid for %v s after the send an hour ago", valid)
	}
}
