//go:build linux || darwin

package story

var fileStories []Story
