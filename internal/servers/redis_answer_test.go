//go:build linux || darwin

package servers

import (
	"bufio"
	"slices"
	"strings"
	"testing"
)

func TestRedisAnswerRefusesTruncatedArray(t *testing.T) {
	for _, text := range []string{"*1\r\n$5\r\nab", "*2\r\n:1\r\n", "*1\r\n$x\r\n"} {
		if answer, err := redisAnswer(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q: %v, want an error", text, answer)
		}
	}
	answer, err := redisAnswer(bufio.NewReader(strings.NewReader("*2\r\n-ERR no\r\n:1\r\n")))
	if all, _ := answer.([]any); err != nil || !slices.Equal(all, []any{"ERR no", int64(1)}) {
		t.Errorf("an error in an array: %v, %v", answer, err)
	}
}
