package console

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// openAPI writes the OpenAPI document. It is made from the routes and from the types of their bodies, so it cannot
// differ from the code.
func (c *call) openAPI() error { return c.ok(document()) }

type object = map[string]any

var document = sync.OnceValue(func() object {
	paths := object{}
	for _, rt := range routes {
		path := strings.ReplaceAll(rt.path, "...}", "}")
		operations, _ := paths[path].(object)
		if operations == nil {
			operations = object{}
			paths[path] = operations
		}
		operations[strings.ToLower(rt.method)] = operation(rt)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "holdfast serve", "version": "1",
			"description": "Locks with fencing tokens. A name in a path is percent-encoded, also its slashes. " +
				"valid_seconds: the client may rely on the lock for that long after it sent the request.",
		},
		"paths": paths,
		"components": object{"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer"},
			"certificate": object{"type": "mutualTLS"}}},
		"security": []object{{}, {"bearer": []string{}}, {"certificate": []string{}}},
	}
})

func operation(rt route) object {
	var parameters []object
	parameter := func(name, in string, required bool) {
		parameters = append(parameters,
			object{"name": name, "in": in, "required": required, "schema": object{"type": "string"}})
	}
	for _, q := range append(rt.query, "store") { // store is required if there are several
		parameter(q, "query", false)
	}
	for _, p := range []string{"name", "id"} {
		if strings.Contains(rt.path, "{"+p) {
			parameter(p, "path", true)
		}
	}
	content := func(media string, v any) object {
		if v == nil {
			return object{media: object{}}
		}
		return object{media: object{"schema": schema(reflect.TypeOf(v))}}
	}
	media := "application/json"
	if rt.stream != "" {
		media = rt.stream
	}
	responses := object{"200": object{"description": rt.doc, "content": content(media, rt.out)}}
	for _, e := range codes {
		status := strconv.Itoa(e.status)
		if same, ok := responses[status].(object); ok {
			same["description"] = same["description"].(string) + ", " + e.code
			continue
		}
		responses[status] = object{"description": e.code, "content": content("application/json", answer{})}
	}
	o := object{"summary": rt.doc, "parameters": parameters, "responses": responses}
	if rt.in != nil {
		o["requestBody"] = object{"content": content("application/json", rt.in)}
	}
	return o
}

// schema returns the JSON schema of a type of this API. For another type it panics, because the document would differ from
// the code.
func schema(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		s := schema(t.Elem())
		if kind, ok := s["type"].(string); ok && kind != "object" {
			s["type"] = []string{kind, "null"}
		}
		return s
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object{"type": []string{"string", "null"}, "contentEncoding": "base64"}
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schema(t.Elem())}
	case t.Kind() == reflect.Struct && !t.Implements(reflect.TypeFor[json.Marshaler]()):
		properties, required := object{}, []string{}
		fields(t, func(name string, f reflect.StructField, optional bool) {
			properties[name] = schema(f.Type)
			if !optional {
				required = append(required, name)
			}
		})
		return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Int:
		return object{"type": "integer"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number", "minimum": 0}
	case t.Kind() == reflect.String:
		return object{"type": "string"}
	}
	panic("console: no schema for " + t.String())
}

// fields calls f for each JSON field, also for those of embedded structs.
func fields(t reflect.Type, f func(name string, field reflect.StructField, optional bool)) {
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous || !field.IsExported():
		case name == "":
			f(field.Name, field, false)
		default:
			embedded := len(field.Index) > 1 && t.Field(field.Index[0]).Type.Kind() == reflect.Pointer
			f(name, field, options == "omitempty" || embedded)
		}
	}
}
