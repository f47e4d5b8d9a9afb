package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/pgstore"
)

func TestValues(t *testing.T) {
	for _, recipe := range postgres.Recipes {
		t.Run(recipe, func(t *testing.T) {
			database := postgres.Create(t)
			drivertest.RunValues(t, func(t testing.TB, namespace string) *pgstore.Store {
				s, err := postgres.Open(context.Background(), postgres.URL(postgres.Server(t).Address, database, "recipe="+recipe), namespace)
				if err != nil {
					t.Fatal(err)
				}
				return s.(*pgstore.Store)
			})
		})
	}
}

// TestValuesWithoutTable requires that an error describes how to create the table.
func TestValuesWithoutTable(t *testing.T) {
	s := postgres.Store(t, postgres.Bare(t), "recipe=optimistic").(*pgstore.Store)
	defer s.Close(t.Context())
	_, err := s.Put(t.Context(), "k", nil, "")
	if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("got %v", err)
	}
}
