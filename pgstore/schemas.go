package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// tables selects the schema and the name of each table that the search path shows, its owner, and whether the
// owner may be trusted with the user's locks: a superuser, the owner of the database, the user or a role of which
// the user is a member, or the owner of the schema. Any user with the right to create schemas may own a schema
// that has the user's name, and the search path begins with it.
const tables = `SELECT quote_ident(n.nspname), c.relname, pg_get_userbyid(c.relowner),
	o.rolsuper OR c.relowner = d.datdba OR o.rolname = current_user
		OR NOT u.rolsuper AND pg_has_role(c.relowner, 'MEMBER') OR c.relowner = n.nspowner AND n.nspname <> current_user
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_catalog.pg_roles o ON o.oid = c.relowner JOIN pg_catalog.pg_roles u ON u.rolname = current_user
	JOIN pg_catalog.pg_database d ON d.datname = current_database()
	WHERE n.nspname = ANY (current_schemas(false)) AND c.relname IN (%s) ORDER BY array_position(current_schemas(false), n.nspname)`

// checkTables refuses tables that may be those of another user than the one who has created them for the store.
// It returns the schemas that have the tables. Some may be missing yet.
func (s *store) checkTables(ctx context.Context, l sqlkit.Link) (schemas []string, err error) {
	names := []string{"'holdfast_row'", "'holdfast_floor'", "'holdfast_name'", "'holdfast_slot'", "'holdfast_value'"}
	if t := s.cfg.Table; t != "" && !strings.Contains(t, ".") {
		names = append(names, "'"+strings.ToLower(t)+"'")
	}
	a, err := l.Run(ctx, fmt.Sprintf(tables, strings.Join(names, ", ")))
	if err != nil {
		return nil, unreached(err)
	}
	found := map[string]string{} // schema by table
	for _, row := range a[len(a)-1] {
		schema, name, owner := row.Text(0), row.Text(1), row.Text(2)
		switch first, twice := found[name]; {
		case twice:
			return nil, driver.Errorf(driver.CodeRefused, "pgstore: the search path shows table %s in the schemas %s and %s, "+
				"and one may be another user's: remove one, or give one schema, as in search_path=%[2]s in the URL", name, first, schema)
		case !row.True(3):
			return nil, driver.Errorf(driver.CodeRefused, "pgstore: table %s.%s belongs to user %s, "+
				"who is neither a superuser nor the owner of the database or of the schema: "+
				"another user may have created it to change the locks of others. If not, give it another owner: ALTER TABLE %[1]s.%[2]s OWNER TO ...", schema, name, owner)
		}
		if found[name] = schema; !slices.Contains(schemas, schema) {
			schemas = append(schemas, schema)
		}
	}
	return schemas, nil
}

// fixSchemas refuses what checkTables refuses, and limits the search path of a connection to the schemas that have
// the tables. A schema that another user creates later then has no effect. Behind a pooler the setting would stay
// in a session that other clients use next.
func (s *store) fixSchemas(ctx context.Context, l *pgLink) error {
	schemas, err := s.checkTables(ctx, l)
	if err != nil || len(schemas) == 0 {
		return err
	}
	isDirect, err := direct(ctx, l)
	if err == nil && isDirect {
		_, err = l.Run(ctx, "SET search_path = "+strings.Join(schemas, ", ")+", pg_temp")
	}
	if err != nil {
		return unreached(err)
	}
	return nil
}
