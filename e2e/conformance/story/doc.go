// Package story plays the stories of check/lab/story on real servers, and compares their
// drawings with those in docs/lab.
package story
