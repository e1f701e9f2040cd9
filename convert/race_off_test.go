//go:build !race

package convert

// raceEnabled: the race detector makes everything slower, and not evenly.
const raceEnabled = false
