package servertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// Publishing returns a Forge of the harness of a store on Redis. It publishes messages with each first letter on the
// channels of every server, as a client whose only right is to publish. Clients subscribe at some of the servers.
func Publishing(all ...*servers.Redis) func(t testing.TB, name string, ids []string, token uint64) {
	return func(t testing.TB, _ string, ids []string, token uint64) {
		t.Helper()
		channels := map[*servers.Redis][]any{}
		Check(t, servers.Within(t.Context(), time.Minute, func() error {
			for _, r := range all {
				answer, err := r.Do(t.Context(), "PUBSUB", "CHANNELS", "*")
				if err != nil {
					return err
				}
				if some, _ := answer.([]any); len(some) > 0 {
					channels[r] = some
				}
			}
			if len(channels) == 0 {
				return errors.New("no client has subscribed")
			}
			return nil
		}))
		for r, some := range channels {
			_, err := r.Do(t.Context(), "ACL", "SETUSER", "publisher", "on", ">secret", "resetkeys", "allchannels", "-@all", "+publish")
			Check(t, err)
			c := goredis.NewClient(&goredis.Options{Addr: r.Address(), Username: "publisher", Password: "secret", Protocol: 2, DisableIdentity: true})
			_, err = c.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
				for _, channel := range some {
					for _, id := range ids {
						for _, rest := range []string{"", " ", fmt.Sprintf(" %d 2500000 ", token+1), fmt.Sprintf(" %d 2500000 tag-1", token+1), "\x00\xff"} {
							p.Publish(t.Context(), channel.(string), id+rest)
							for letter := byte(' '); letter < 0x7f; letter++ {
								p.Publish(t.Context(), channel.(string), string(letter)+id+rest)
							}
						}
					}
				}
				return nil
			})
			_ = c.Close()
			Check(t, err)
		}
	}
}
