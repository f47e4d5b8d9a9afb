// Package story tests the stories of check/lab/story on real servers, and keeps their
// drawings in docs/lab.
package story
