package mysql

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

func TestCrashFreesAtOnce(t *testing.T)            { sqltest.CrashFreesAtOnce(t, mariadb) }
func TestDeletedRowEndsTheGrant(t *testing.T)      { sqltest.DeletedRowEndsTheGrant(t, mariadb) }
func TestClockSetForwardEndsTheGrant(t *testing.T) { sqltest.ClockSetForwardEndsTheGrant(t, mariadb) }
