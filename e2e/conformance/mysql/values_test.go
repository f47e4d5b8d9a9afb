package mysql

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

func TestValues(t *testing.T) {
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			database := mariadb.Create(t)
			drivertest.RunValues(t, func(t testing.TB, namespace string) *mysqlstore.Store {
				s, err := mariadb.Open(context.Background(), mariadb.URL(mariadb.Server(t).Address, database, "recipe="+recipe), namespace)
				if err != nil {
					t.Fatal(err)
				}
				return s.(*mysqlstore.Store)
			})
		})
	}
}

// TestValuesWithoutTable requires that an error describes how to create the table.
func TestValuesWithoutTable(t *testing.T) {
	s := mariadb.Store(t, mariadb.Bare(t), "recipe=optimistic").(*mysqlstore.Store)
	defer s.Close(t.Context())
	_, err := s.Put(t.Context(), "k", nil, "")
	if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("got %v", err)
	}
}
