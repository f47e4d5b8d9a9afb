package main

//go:generate go run ./internal/manpages ../../docs/man
