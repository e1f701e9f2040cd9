package relay_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvrelay/kvrelay/internal/mockengine"
)

// What a client's completions leave in an engine that keeps duplicates is what
// routers see, though DUPLICATES=auto has to find out how it reports.
func TestCompletionsOfAClient(t *testing.T) {
	b := start(t, setup{engine: mockengine.Options{BlockSize: 16, Blocks: 12, Duplicates: true}})
	b.ready()
	h := b.engine.Handler(mockengine.DiscoverNone)
	complete := func(first, length, answer int) {
		t.Helper()
		prompt := make([]int, length)
		for i := range prompt {
			prompt[i] = first + i
		}
		text, err := json.Marshal(prompt)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/completions", strings.NewReader(fmt.Sprintf(`{"prompt":%s,"max_tokens":%d}`, text, answer))))
		if w.Code != 200 {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		b.same()
	}
	complete(0, 16, 1)
	complete(0, 16, 1)
	complete(0, 16, 20)
	for i := range 20 {
		complete(1000*(i+1), 40, 1)
	}
}
