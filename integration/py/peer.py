"""An engine's KV-event publisher on real libzmq, for tests.

It does what vLLM's and SGLang's publisher threads do: one thread owns a PUB
and a ROUTER; between two publishes it serves at most one replay request from
its buffer of the last batches; idle, it looks every 0.1 s. What it publishes
are the messages of a capture file, or whatever it is told.

argv[1] is a JSON object: pub, router (endpoints, "" = none), shape, topic,
buffer_steps, hwm, router_hwm, socket (PUB or XPUB), heartbeat_ms. The first
line on stdout tells the bound endpoints. Then each line of JSON on stdin is a
command, answered by one line each:

  load path                  read a capture file (.gz or not)
  publish from to withhold every_ms
                             messages [from, to) of it; those whose index is in
                             withhold go to the replay buffer only
  send seq payload withhold  one message (payload base64; seq null: two frames)
  many messages pad          a list of the arguments of send; pad zeroes as a bin
                             are appended to each payload
  raw frames                 frames as they are, on the PUB
  subscriber ms              wait until somebody subscribes (XPUB only)
  replay mode arg            how replay requests are served from now on: ok;
                             stall (read and never answered); truncate (arg
                             replies, no end marker); slow (arg ms before each
                             reply); noend (all, no end marker); old (without
                             the newest arg batches, as if they were appended late)
  freeze on                  the thread does nothing at all while on
  forget                     empty the replay buffer
  close_router, open_router  as an engine that opens it late
  restart                    a new process: sockets closed and bound anew at the
                             same endpoints, the buffer empty
  stats                      requests (start numbers), replays, published, subscribers
"""

import base64
import collections
import gzip
import json
import queue
import sys
import threading
import time

import zmq

END = b"\xff" * 8


def frames_of(path):
    op = gzip.open if path.endswith(".gz") else open
    with op(path, "rt") as f:
        next(f)
        return [[bytes.fromhex(x) for x in json.loads(line)["frames"]] for line in f]


class Publisher:
    def __init__(self, cfg):
        self.cfg = cfg
        self.pub_at, self.router_at = cfg["pub"], cfg.get("router", "")
        self.buffer = collections.deque(maxlen=cfg.get("buffer_steps", 10000))
        self.mode, self.arg = "ok", 0
        self.requests, self.replays, self.published, self.subscribers = [], 0, 0, 0
        self.frozen = threading.Event()
        self.work = queue.Queue()
        self.ctx = zmq.Context()
        self.pub = self.router = None
        self.bind()

    # Sockets

    def bind(self):
        self.pub = self.ctx.socket(zmq.XPUB if self.cfg.get("socket") == "XPUB" else zmq.PUB)
        self.pub.linger = 0
        self.pub.sndhwm = self.cfg.get("hwm", 100000)
        if self.cfg.get("socket") == "XPUB":
            self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        if self.cfg.get("heartbeat_ms"):
            self.pub.setsockopt(zmq.HEARTBEAT_IVL, self.cfg["heartbeat_ms"])
            self.pub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * self.cfg["heartbeat_ms"])
        self.pub_at = self.listen(self.pub, self.pub_at)
        self.open_router()

    def open_router(self):
        if self.router_at and self.router is None:
            self.router = self.ctx.socket(zmq.ROUTER)
            self.router.linger = 0
            self.router.sndhwm = self.cfg.get("router_hwm", 1000)
            self.router_at = self.listen(self.router, self.router_at)

    def close_router(self):
        if self.router is not None:
            self.router.close()
            self.router = None

    def listen(self, socket, endpoint):
        """Binds, also where the port was let go of a moment ago."""
        for attempt in range(200):
            try:
                socket.bind(endpoint)
                return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
            except zmq.ZMQError as e:
                if e.errno != zmq.EADDRINUSE or attempt == 199:
                    raise
                time.sleep(0.02)

    def restart(self):
        self.close_router()
        self.pub.close()
        self.buffer.clear()
        self.subscribers = 0
        self.bind()

    # The thread

    def run(self):
        while True:
            while self.frozen.is_set():
                time.sleep(0.005)
            self.look()
            try:
                job = self.work.get(timeout=0.1)
            except queue.Empty:
                continue
            if job is None:
                return
            job()

    def look(self):
        if self.router is not None and self.router.poll(0):
            self.serve()
        if self.cfg.get("socket") == "XPUB":
            while self.pub.poll(0):
                self.subscribers += 1 if self.pub.recv()[:1] == b"\x01" else -1

    def serve(self):
        request = self.router.recv_multipart()
        if len(request) != 3:
            return  # engines log it and are silent
        client, empty, start = request
        first = int.from_bytes(start, "big")
        self.requests.append(first)
        if self.mode == "stall":
            return
        front = [client, empty]
        topic = {"4": [self.cfg.get("topic", "").encode()]}.get(self.cfg.get("shape", "3"), [])
        sent = 0
        batches = list(self.buffer)
        if self.mode == "old":
            batches = batches[: max(0, len(batches) - self.arg)]
        for seq, payload in batches:
            if seq < first:
                continue
            if self.mode == "truncate" and sent >= self.arg:
                return
            if self.mode == "slow":
                time.sleep(self.arg / 1000)
            self.router.send_multipart(front + topic + [seq.to_bytes(8, "big"), payload])
            sent += 1
        self.replays += 1
        if self.mode in ("noend", "truncate"):
            return
        shape = self.cfg.get("shape", "3")
        if shape == "4":
            self.router.send_multipart(front + [b"", END, b""])
        elif shape == "3":
            self.router.send_multipart(front + [END, b""])
        elif shape == "atom":
            self.router.send_multipart(front + [END])
        # "atom-silent": no end marker

    def message(self, frames, withhold):
        self.look()  # a replay may come between any two
        topic, seq, payload = frames
        if not withhold:
            self.pub.send_multipart(frames)
            self.published += 1
        self.buffer.append((int.from_bytes(seq, "big"), payload))

    # Commands, from the main thread

    def inside(self, fn):
        """Runs fn on the publisher's thread and returns what it returned."""
        done = queue.Queue()

        def job():
            try:
                done.put((fn(), None))
            except Exception as e:  # told to the test
                done.put((None, repr(e)))

        self.work.put(job)
        value, err = done.get()
        if err:
            raise RuntimeError(err)
        return value

    def publish(self, frames, frm, to, withhold, every_ms):
        withhold = set(withhold)
        for i in range(frm, to):
            self.inside(lambda i=i: self.message(frames[i], i in withhold))
            if every_ms:
                time.sleep(every_ms / 1000)


def main():
    p = Publisher(json.loads(sys.argv[1]))
    say = lambda o: print(json.dumps(o), flush=True)
    threading.Thread(target=p.run, daemon=True).start()
    say({"pub": p.pub_at, "router": p.router_at})
    frames = []
    for line in sys.stdin:
        q = json.loads(line)
        op, out = q["op"], {}
        try:
            if op == "load":
                frames = frames_of(q["path"])
                out["messages"] = len(frames)
            elif op == "publish":
                p.publish(frames, q["from"], q["to"], q.get("withhold") or [], q.get("every_ms", 0))
            elif op == "send":
                payload = base64.b64decode(q["payload"])
                topic = p.cfg.get("topic", "").encode()
                if q.get("seq") is None:
                    p.inside(lambda: p.pub.send_multipart([topic, payload]))
                else:
                    one = [topic, q["seq"].to_bytes(8, "big"), payload]
                    p.inside(lambda: p.message(one, q.get("withhold", False)))
            elif op == "many":
                topic = p.cfg.get("topic", "").encode()
                pad = b"\xc6" + q["pad"].to_bytes(4, "big") + bytes(q["pad"]) if q.get("pad") else b""
                for m in q["messages"]:
                    one = [topic, m["seq"].to_bytes(8, "big"), base64.b64decode(m["payload"]) + pad]
                    p.inside(lambda: p.message(one, m.get("withhold", False)))
            elif op == "raw":
                raw = [base64.b64decode(f) for f in q["frames"]]
                p.inside(lambda: p.pub.send_multipart(raw))
            elif op == "subscriber":
                end = time.monotonic() + q.get("ms", 10000) / 1000
                while p.subscribers <= 0 and time.monotonic() < end:
                    time.sleep(0.005)
                out["there"] = p.subscribers > 0
            elif op == "replay":
                p.mode, p.arg = q["mode"], q.get("arg", 0)
            elif op == "freeze":
                (p.frozen.set if q["on"] else p.frozen.clear)()
            elif op == "forget":
                p.inside(p.buffer.clear)
            elif op == "close_router":
                p.inside(p.close_router)
            elif op == "open_router":
                p.inside(p.open_router)
            elif op == "restart":
                p.inside(p.restart)
            elif op == "stats":
                out = {"requests": p.requests, "replays": p.replays, "published": p.published, "subscribers": p.subscribers}
            else:
                out["error"] = "unknown op " + op
        except Exception as e:
            out["error"] = repr(e)
        say(out)


if __name__ == "__main__":
    main()
