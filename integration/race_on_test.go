//go:build race

package integration

// The program under test is built as the tests are.
const raceEnabled = true
