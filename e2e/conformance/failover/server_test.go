//go:build !race

package failover

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/holdfast-go/holdfast/redisstore"
)

// key is a key of a server: a hash, or a text. A key without a time to live has expires 0.
type key struct {
	fields  map[string]string
	text    string
	expires int64
}

// data are the keys of a server.
type data map[string]key

// text returns the same text for equal data.
func (d data) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d)) {
		k := d[name]
		fmt.Fprintf(&b, "%q %q %d", name, k.text, k.expires)
		for _, field := range slices.Sorted(maps.Keys(k.fields)) {
			fmt.Fprintf(&b, " %q %q", field, k.fields[field])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// interpreter runs scripts. It has the commands of Redis that the scripts use.
type interpreter struct {
	l       *lua.LState
	scripts map[string]*lua.FunctionProto

	// These belong to one run.
	data     data
	now      int64 // microseconds
	wrote    bool
	messages []message
}

// message is what a script publishes.
type message struct{ channel, text string }

func newInterpreter() *interpreter {
	in := &interpreter{l: lua.NewState(), scripts: map[string]*lua.FunctionProto{}}
	command := func(l *lua.LState) int {
		args := make([]string, l.GetTop())
		for i := range args {
			args[i] = l.ToString(i + 1)
		}
		l.Push(in.command(args))
		return 1
	}
	in.l.SetGlobal("redis", in.l.SetFuncs(in.l.NewTable(), map[string]lua.LGFunction{
		"call": command, "pcall": command,
		"error_reply": func(l *lua.LState) int {
			t := l.NewTable()
			t.RawSetString("err", l.Get(1))
			l.Push(t)
			return 1
		},
	}))
	return in
}

// run runs a script on the data, and returns its answer and the new data.
func (in *interpreter) run(
	s *redisstore.Script, keys, args []string, d data, now int64,
) (answer []string, after data, err error) {
	p := in.scripts[s.SHA]
	if p == nil {
		chunk, err := parse.Parse(strings.NewReader(s.Source), s.Name)
		if err != nil {
			return nil, nil, err
		}
		if p, err = lua.Compile(chunk, s.Name); err != nil {
			return nil, nil, err
		}
		in.scripts[s.SHA] = p
	}
	in.data, in.now, in.wrote, in.messages = maps.Clone(d), now, false, nil
	maps.DeleteFunc(in.data, func(_ string, k key) bool { return k.expires != 0 && k.expires <= now })
	in.l.SetGlobal("KEYS", in.list(keys))
	in.l.SetGlobal("ARGV", in.list(args))
	in.l.Push(in.l.NewFunctionFromProto(p))
	if err := in.l.PCall(0, 1, nil); err != nil {
		return nil, nil, err
	}
	value := in.l.Get(-1)
	in.l.Pop(1)
	if t, ok := value.(*lua.LTable); ok && t.RawGetString("err") != lua.LNil {
		return nil, in.data, redisstore.ServerError(t.RawGetString("err").String())
	}
	return flatten(nil, value), in.data, nil
}

func (in *interpreter) list(all []string) *lua.LTable {
	t := in.l.NewTable()
	for _, s := range all {
		t.Append(lua.LString(s))
	}
	return t
}

// flatten does what the client does with an answer.
func flatten(to []string, v lua.LValue) []string {
	switch v := v.(type) {
	case *lua.LTable:
		for i := 1; i <= v.Len(); i++ {
			to = flatten(to, v.RawGetInt(i))
		}
		return to
	case lua.LNumber:
		return append(to, strconv.FormatInt(int64(v), 10)) // Redis cuts the fraction off
	}
	return append(to, v.String())
}

// command executes a command of a script.
func (in *interpreter) command(args []string) lua.LValue {
	switch args[0] {
	case "TIME":
		return in.list([]string{strconv.FormatInt(in.now/1e6, 10), strconv.FormatInt(in.now%1e6, 10)})
	case "PUBLISH":
		in.messages = append(in.messages, message{args[1], args[2]})
		return lua.LNumber(1)
	}
	name, k := args[1], in.data[args[1]]
	_, exists := in.data[name]
	text := func(s string, ok bool) lua.LValue {
		if !ok {
			return lua.LFalse
		}
		return lua.LString(s)
	}
	set := func(k key) {
		in.data[name], in.wrote = k, true
	}
	switch args[0] {
	case "GET":
		return text(k.text, exists)
	case "SET":
		set(key{text: args[2]})
		if len(args) == 4 && args[3] == "GET" {
			return text(k.text, exists)
		}
	case "DEL":
		in.wrote = in.wrote || exists
		delete(in.data, name)
	case "HLEN":
		return lua.LNumber(len(k.fields))
	case "HKEYS":
		return in.list(slices.Sorted(maps.Keys(k.fields)))
	case "HGET":
		v, ok := k.fields[args[2]]
		return text(v, ok)
	case "HMGET":
		t := in.l.NewTable()
		for _, field := range args[2:] {
			v, ok := k.fields[field]
			t.Append(text(v, ok))
		}
		return t
	case "HSET":
		k.fields = maps.Clone(k.fields)
		if k.fields == nil {
			k.fields = map[string]string{}
		}
		for i := 2; i < len(args); i += 2 {
			k.fields[args[i]] = args[i+1]
		}
		set(k)
	case "HDEL":
		before := len(k.fields)
		k.fields = maps.Clone(k.fields)
		for _, field := range args[2:] {
			delete(k.fields, field)
		}
		switch {
		case len(k.fields) == before:
		case len(k.fields) == 0:
			delete(in.data, name)
			in.wrote = true
		default:
			set(k)
		}
		return lua.LNumber(before - len(k.fields))
	case "PTTL":
		switch {
		case !exists:
			return lua.LNumber(-2)
		case k.expires == 0:
			return lua.LNumber(-1)
		}
		return lua.LNumber(math.Ceil(float64(k.expires-in.now) / 1e3))
	case "PEXPIRE":
		ms, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			in.l.RaiseError("ERR value is not an integer")
		}
		if exists {
			k.expires = in.now + ms*1e3
			set(k)
		}
	default:
		in.l.RaiseError("the model has no command %s", args[0])
	}
	return lua.LNumber(1)
}
