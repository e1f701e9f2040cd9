#!/usr/bin/env python3
"""A router's side of kvrelay in one page: who holds how much of a prompt?

pip install nats-py msgpack xxhash; PROFILE=dynamo (the default), NATS core.
python3 consumer.py nats://127.0.0.1:4222 dynamo 11,22,33,44,55,66,77,88 4
prints a JSON line whenever a rank's answer changes: {"worker", "rank", "held", "hit"} in blocks.
"""
import asyncio, json, struct, sys
import msgpack, nats, xxhash

URL, NAMESPACE, PROMPT, BLOCK = sys.argv[1], sys.argv[2], [int(t) for t in sys.argv[3].split(",")], int(sys.argv[4])
SUBJECT = f"namespace.{NAMESPACE}.component.backend.endpoint.generate.kv-events"


def tokens_hash(tokens, seed=1337):  # + XXH3(lora name), + XXH3(salt, seed 1) where a request has them
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(tokens)}I", *tokens), seed)


class Rank:
    """One data-parallel rank: its queue is what is held while an answer is awaited."""

    def __init__(self, nc, worker, rank):
        self.nc, self.worker, self.rank = nc, worker, rank
        self.publisher, self.last, self.said = None, 0, None
        self.tiers, self.queue = {}, asyncio.Queue()  # tier -> hash -> (parent, tokens hash)
        self.task = asyncio.create_task(self.follow())

    def apply(self, event):
        data, blocks = event["event"]["data"], self.tiers.setdefault(event["storage_tier"], {})
        if data == "cleared":
            self.tiers.clear()
        elif "stored" in data:
            parent = data["stored"]["parent_hash"]
            for b in data["stored"]["blocks"]:
                blocks[b["block_hash"]] = (parent, b["tokens_hash"])
                parent = b["block_hash"]
        else:
            for h in data["removed"]["block_hashes"]:
                blocks.pop(h, None)

    async def follow(self):
        while True:
            publisher, upto, events = await self.queue.get()  # upto: newest id that must be known
            while publisher != self.publisher or upto > self.last:
                new = [e for e in events if publisher == self.publisher and e["event"]["event_id"] > self.last]
                if new and new[0]["event"]["event_id"] == self.last + 1:
                    for e in new:
                        self.apply(e)
                    self.last = upto
                elif await self.recover() and publisher != self.publisher:
                    break  # what it said belongs to an earlier life
                elif upto > self.last:
                    await asyncio.sleep(0.5)
            self.tell()

    async def recover(self):
        """Ask for what was missed: the events after the last one known, or a snapshot."""
        ask = {"publisher_id": self.publisher, "from": self.last + 1} if self.publisher else {}
        try:
            while True:
                m = await self.nc.request(f"kvrelay.{NAMESPACE}.{self.worker}.{self.rank}.recover", json.dumps(ask).encode(), timeout=2)
                h = m.headers or {}
                if "Nats-Service-Error-Code" in h:
                    return False
                for e in msgpack.unpackb(m.data):
                    self.apply(e)
                more = h["Kvrelay-More"] == "true"
                if h["Kvrelay-Kind"] == "events":
                    self.publisher, self.last = int(h["Kvrelay-Publisher"]), int(h["Kvrelay-Last"])
                    ask = {"publisher_id": self.publisher, "from": self.last + 1}
                else:  # a snapshot: exact as of Done, whatever was known before
                    self.publisher, self.last = None, 0
                    ask = {"snapshot": h["Kvrelay-Snapshot"], "part": int(h["Kvrelay-Part"]) + 1}
                    if not more:
                        self.publisher, self.last = int(h["Kvrelay-Publisher"]), int(h["Kvrelay-Done"])
                if not more:
                    return True
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            return False

    def tell(self):
        known, parent, hit = {v: h for h, v in self.tiers.get("device", {}).items()}, None, 0
        for i in range(0, len(PROMPT) - BLOCK + 1, BLOCK):
            parent = known.get((parent, tokens_hash(PROMPT[i : i + BLOCK])))
            if parent is None:
                break
            hit += 1
        line = {"worker": self.worker, "rank": self.rank, "held": sum(map(len, self.tiers.values())), "hit": hit}
        if line != self.said:
            self.said = line
            print(json.dumps(line), flush=True)


async def main():
    nc, ranks = await nats.connect(URL, max_reconnect_attempts=-1), {}

    def rank(worker, dp):
        return ranks.setdefault((worker, dp), None) or ranks.__setitem__((worker, dp), Rank(nc, worker, dp)) or ranks[worker, dp]

    async def on_events(m):
        envelope = msgpack.unpackb(m.data)
        events = msgpack.unpackb(envelope["payload"])
        last = events[-1]
        rank(last["worker_id"], last["event"]["dp_rank"]).queue.put_nowait((envelope["publisher_id"], last["event"]["event_id"], events))

    async def on_heartbeat(m):  # a second later its id must be known: also the last event can be lost
        beat, (_, _, worker, dp, _) = json.loads(m.data), m.subject.split(".")
        item = (beat["publisher_id"], beat["last_event_id"], [])
        asyncio.get_running_loop().call_later(1, rank(int(worker), int(dp)).queue.put_nowait, item)

    await nc.subscribe(SUBJECT, cb=on_events)
    await nc.subscribe(f"kvrelay.{NAMESPACE}.*.*.heartbeat", cb=on_heartbeat)
    await asyncio.Event().wait()


asyncio.run(main())
