//go:build integration && !race

package integration

const raceEnabled = false
