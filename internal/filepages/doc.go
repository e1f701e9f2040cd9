// Package filepages makes a process that only waits smaller by what its start has
// touched of its own file.
package filepages
