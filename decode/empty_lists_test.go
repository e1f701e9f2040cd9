package decode

import "testing"

// An empty list of tokens is there and holds none: no block_size is asked for,
// whether the Batch is new or has room for tokens.
func TestEmptyTokensAreNone(t *testing.T) {
	for _, warm := range []bool{false, true} {
		for name, event := range map[string]any{
			"map":                    dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{}, "block_size", 4},
			"map without block_size": dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{}},
			"tuple":                  list{"BlockStored", list{1}, nil, list{}, 4},
			"tuple, block_size nil":  list{"BlockStored", list{1}, nil, list{}, nil},
			"several": dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", list{1, 2}, "block_size", 4,
				"token_ids", list{}},
		} {
			var b Batch
			if warm {
				if err := b.Decode(batchOf(stored(), stored())); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Decode(batchOf(event)); err != nil {
				t.Fatal(err)
			}
			if ev := &b.Events[0]; ev.Type != Stored || !ev.HasTokens || ev.Tokens.Len() != 0 || ev.Pairs != NoPairs || len(ev.Hashes) != 1 {
				t.Errorf("%s (warm: %t): %s", name, warm, show(ev))
			}
		}
	}
}

// Pairs take the room of the tokens that they stand for, and nothing for having
// been tried as plain ones; a list that is neither takes none.
func TestPairsTakeNoMoreRoom(t *testing.T) {
	for name, c := range map[string]struct {
		tokens any
		bytes  int
	}{
		"plain":                 {list{1, 2, 3}, 12},
		"pairs":                 {list{list{1, 2}, list{2, 3}, list{3, 4}}, 16},
		"pairs that do not":     {list{list{1, 2}, list{5, 3}}, 12},
		"a pair behind a token": {list{1, list{1, 2}}, 12},
		"neither":               {list{1, "x"}, 0},
		"none":                  {list{}, 0},
	} {
		for _, event := range []any{dict{"type", "BlockStored", "block_hashes", list{1}, "token_ids", c.tokens, "block_size", 4}, list{"BlockStored", list{1}, nil, c.tokens, 4}} {
			var b Batch
			for range 2 {
				if err := b.Decode(batchOf(event)); err != nil {
					t.Fatal(err)
				}
				if b.tokens.used != c.bytes {
					t.Errorf("%s: %d bytes taken, want %d", name, b.tokens.used, c.bytes)
				}
			}
		}
	}
}
