package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/kvrelay/kvrelay/config"
)

const configHelp = `
Usage: kvrelay config [--json] [settings]

Shows every setting: the variable, the value in force, where that came from and
what it means. Secrets are masked. Nothing is started. Exit code 2 when the
settings have problems, which are listed after the table.`

// runConfig shows the settings in force.
func runConfig(_ context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("config", flag.ContinueOnError)
	asJSON := fs.Bool("json", false, "one JSON array instead of a table")
	own := map[string]bool{"json": true}
	cfg, problems := config.Load(fs, args)
	if errors.Is(problems, flag.ErrHelp) {
		fmt.Fprintln(stdout, configHelp[1:])
		printFlags(stdout, fs, own)
		return exitOK
	}
	if err := showConfig(stdout, cfg, *asJSON); err != nil {
		return fail(stderr, "config", fmt.Errorf("writing the table: %w", err))
	}
	if problems != nil {
		fmt.Fprintf(stderr, "kvrelay config: %v\n", problems)
		return exitUsage
	}
	return exitOK
}

// showConfig writes the table with the values in force.
func showConfig(w io.Writer, cfg *config.Config, asJSON bool) error {
	values := cfg.Masked()
	for i, v := range values {
		if v.Name != "WORKER_ID" || v.Text != "" || cfg.EngineAddress() == "" && cfg.Membership != config.MembershipKubernetes {
			continue
		}
		if host, err := os.Hostname(); err == nil {
			values[i].Text, values[i].Origin = fmt.Sprint(cfg.Worker(host)), config.Derived
		}
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(values)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "VARIABLE\tVALUE\tFROM\tMEANING")
	for _, v := range values {
		text := v.Text
		if text == "" {
			text = "–"
			if v.Default != "" && v.Origin == config.FromDefault {
				text = "– (" + v.Default + ")"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", v.Var, text, v.Origin, v.Meaning)
	}
	return t.Flush()
}
