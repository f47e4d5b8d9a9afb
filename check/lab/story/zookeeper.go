//go:build linux || darwin

package story

var zookeeperStories []Story
