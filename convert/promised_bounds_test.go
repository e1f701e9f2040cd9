package convert

import "testing"

// The bounds and limits that rules, documentation and notices name, as numbers.
func TestBoundsAreThosePromised(t *testing.T) {
	for name, c := range map[string][2]uint64{
		"blocks in a ledger":                 {DefaultMaxBlocks, 4_194_304},
		"rules":                              {RulesVersion, 1},
		"seed of tokens_hash":                {routerSeed, 1337},
		"refused hashes":                     {maxRefused, 65_536},
		"ambiguous hashes":                   {maxAmbiguous, 65_536},
		"salts":                              {maxSalts, 65_533},
		"groups":                             {maxGroups, 254},
		"blocks with multimodal information": {maxMMBlocks, 65_536},
		"numbers of it":                      {maxMMNumbers, 1_048_576},
		"unknown tags":                       {maxTags, 32},
		"hashes of a run":                    {runLimit, 128},
		"stores of another size until it is told": {missLimit, 64},
		"moved hashes until it is told":           {movedLimit, 3},
		"removed blocks whose parent is known":    {maxParted, 1024},
		"blocks of a walk":                        {walkLimit, 1024},
		"blocks of a sweep":                       {sweepLimit, 4096},
		"announcements of a batch":                {maxRoots, 1024},
		"ancestors of a block published again":    {maxClimb, 4096},
		"parent of SGLang 0.4.9's first blocks":   {sglangRoot, 5_740_354_900_026_072_187},
		"kept arenas":                             {keepBlocks, 65_536},
		"entries of a segment":                    {segSize, 1024},
		"spare segments":                          {maxSpare, 4},
		"places of a page":                        {pageSize, 1024},
		"used places of a full page":              {pageFull, 768},
		"used places of two pages to be joined":   {pageJoin, 256},
		"places from home":                        {maxStray, 256},
		"slots that an index tells apart":         {maxPlaces, 16_777_215},
		"spare pages":                             {maxSparePages, 16},
		"hashes compared one by one":              {fewHashes, 8},
		"hashes in a table":                       {manyHashes, 2048},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d, want %d", name, c[0], c[1])
		}
	}
}
