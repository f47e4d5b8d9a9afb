//go:build linux || darwin

package story

var sqlStories []Story
