package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kvrelay/kvrelay/membership"
)

type uid = types.UID

// buckets are the maps of spec.data by the beginning of the keys of their
// records. Dynamo's event_channels are none of ours.
var buckets = map[string]string{
	"v1/instances/":     "endpoints",
	"v1/mdc/":           "model_cards",
	"v1/event_sources/": "event_sources",
}

// place is where a record stands in spec.data.
func place(key string) (bucket, name string, err error) {
	for begin, bucket := range buckets {
		if name, ok := strings.CutPrefix(key, begin); ok {
			return bucket, name, nil
		}
	}
	return "", "", fmt.Errorf("kube: no place for the record %q", key)
}

// decode reads a record. Kubernetes keeps whole numbers in 64 bits with a sign
// and rounds others without a word, so those are refused.
func decode(value []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return whole(v)
}

// whole makes int64 of every number in v.
func whole(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			return nil, fmt.Errorf("the number %s is no whole number up to %d, which Kubernetes would round", v, int64(math.MaxInt64))
		}
		return n, nil
	case map[string]any:
		for k := range v {
			if v[k], err = whole(v[k]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = whole(v[i]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// object is what matters of a custom resource.
type object struct {
	uid     types.UID
	owners  []types.UID
	deleted bool            // it is only there until its finalizers have run
	records map[string]any  // by the key that they have in every backend
	applied map[string]bool // keys of records that kvrelay has applied
}

// parse reads an object. A map that is null or something else than a map is empty.
func parse(u *unstructured.Unstructured) *object {
	o := &object{uid: u.GetUID(), deleted: u.GetDeletionTimestamp() != nil, records: map[string]any{}, applied: map[string]bool{}}
	for _, ref := range u.GetOwnerReferences() {
		o.owners = append(o.owners, ref.UID)
	}
	spec, _ := u.Object["spec"].(map[string]any)
	data, _ := spec["data"].(map[string]any)
	for begin, bucket := range buckets {
		in, _ := data[bucket].(map[string]any)
		for name, record := range in {
			if record != nil {
				o.records[begin+name] = record
			}
		}
	}
	for _, m := range u.GetManagedFields() {
		if m.Manager == manager && m.Operation == metav1.ManagedFieldsOperationApply && m.FieldsV1 != nil {
			o.addApplied(m.FieldsV1.GetRawBytes())
		}
	}
	return o
}

// addApplied reads a set of fields in its form fieldsV1: f:<name> of a field
// holds the set below it.
func (o *object) addApplied(fields []byte) {
	var set struct {
		Spec struct {
			Data map[string]json.RawMessage `json:"f:data"`
		} `json:"f:spec"`
	}
	if json.Unmarshal(fields, &set) != nil {
		return // no apply of ours looks like that
	}
	for begin, bucket := range buckets {
		var names map[string]json.RawMessage
		if json.Unmarshal(set.Spec.Data["f:"+bucket], &names) != nil {
			continue
		}
		for name := range names {
			if name, ok := strings.CutPrefix(name, "f:"); ok {
				if key := begin + name; o.records[key] != nil {
					o.applied[key] = true
				}
			}
		}
	}
}

func (o *object) ownedBy(pod string) bool {
	for _, owner := range o.owners {
		if string(owner) == pod {
			return true
		}
	}
	return false
}

// has says whether every one of records is there as it is.
func (o *object) has(records map[string]any) bool {
	for key, record := range records {
		if !reflect.DeepEqual(o.records[key], record) {
			return false
		}
	}
	return true
}

// changed are the keys of records in whose place something else is.
func (o *object) changed(records map[string]any) (keys []string) {
	for key, record := range records {
		if there := o.records[key]; there != nil && !reflect.DeepEqual(there, record) {
			keys = append(keys, key)
		}
	}
	return keys
}

// takenOver says whether another process has put itself in the place of a record;
// nil: it was none of ours.
func (o *object) takenOver(key string, record any) bool {
	if record == nil || reflect.DeepEqual(o.records[key], record) {
		return false
	}
	there, err := o.value(key)
	return err == nil && !membership.Restorable(key, there)
}

func (o *object) value(key string) ([]byte, error) { return json.Marshal(o.records[key]) }

// body is a manifest or patch with what is said of records in spec.data; a nil
// takes one away in a merge patch.
func body(metadata map[string]any, records map[string]any) ([]byte, error) {
	data := map[string]map[string]any{}
	for key, record := range records {
		bucket, name, err := place(key)
		if err != nil {
			return nil, err
		}
		if data[bucket] == nil {
			data[bucket] = map[string]any{}
		}
		data[bucket][name] = record
	}
	return json.Marshal(map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": "DynamoWorkerMetadata",
		"metadata": metadata, "spec": map[string]any{"data": data},
	})
}

// nothing is a nil for each key.
func nothing(keys map[string]bool) map[string]any {
	out := make(map[string]any, len(keys))
	for key := range maps.Keys(keys) {
		out[key] = nil
	}
	return out
}
