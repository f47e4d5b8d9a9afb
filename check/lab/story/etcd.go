//go:build linux || darwin

package story

var etcdStories []Story
