import assert from "node:assert/strict";
import { test } from "node:test";
import { anchorPositions, decode, profile, type Film } from "../src/film.ts";
import { begin, Channel, grow, type Header, type Socket, type StepMessage } from "../src/protocol.ts";
import { bytes, halves, small } from "./films.ts";

const { tokens: _t, confidence: _c, received: _r, anchors: _a, committed_at: _m, ...rest } = small();
const HEADER: Header = { ...rest, vocabulary: { "0": "<|bos|>", "1": " Ada", "2": "<|mask|>" }, length: 4 };
const STEPS: StepMessage[] = [
  {
    type: "step", id: 1, index: 0, tokens: [0, 1, 2, 2], after: [0, 1, 3, 2], confidence: [null, null, 0.75, 0.5],
    received: halves([0.5, 0.25, 0.125, 0.125, 0.25, 0.5, 0.125, 0.125], [2, 4]),
    anchors: { "top(n=1)": bytes([1, 2], [2, 1]) }, anchors_all: { "top(n=1)": bytes([1], [1]) }, vocabulary: { "3": " is" },
  },
  {
    type: "step", id: 1, index: 1, tokens: [0, 1, 3, 2], after: [0, 1, 3, 4], confidence: [null, null, null, 0.875],
    received: halves([0.125, 0.125, 0.5, 0.25, 0.125, 0.25, 0.125, 0.5], [2, 4]),
    anchors: { "top(n=1)": bytes([4, 8], [2, 1]) }, anchors_all: { "top(n=1)": bytes([8], [1]) }, vocabulary: { "4": " here" },
  },
];

test("a film that grew step by step is the film that comes at the end", () => {
  const whole = decode(small());
  const grown = STEPS.reduce(grow, begin(HEADER));
  assert.equal(grown.S, 2);
  assert.deepEqual(grown.tokens, whole.tokens);
  assert.deepEqual(grown.raw.committed_at, whole.raw.committed_at);
  assert.deepEqual(grown.raw.vocabulary, whole.raw.vocabulary);
  for (const step of [0, 1])
    for (const layer of [0, 1, null]) {
      assert.deepEqual(profile(grown, step, layer, null), profile(whole, step, layer, null));
      assert.deepEqual(anchorPositions(grown, "top(n=1)", step, layer), anchorPositions(whole, "top(n=1)", step, layer));
    }
});

function channel() {
  const sockets: (Socket & { sent: Record<string, unknown>[] })[] = [];
  const films: [number, Film, Film | null, boolean][] = [];
  const rows: unknown[] = [];
  const said: string[] = [];
  const errors: [number | null, string][] = [];
  const made = new Channel(
    () => {
      const sent: Record<string, unknown>[] = [];
      const socket = { readyState: 0, sent, send: (text: string) => void sent.push(JSON.parse(text)), close: () => {}, onopen: null, onmessage: null, onclose: null };
      sockets.push(socket);
      return socket;
    },
    { status: (text) => void said.push(text), error: (...all) => void errors.push(all), film: (...all) => void films.push(all), trace: () => {}, row: (...all) => void rows.push(all) },
  );
  const hear = (message: object) => sockets[sockets.length - 1].onmessage!({ data: JSON.stringify(message) });
  const open = () => {
    const socket = sockets[sockets.length - 1];
    socket.readyState = 1;
    socket.onopen!(null as never);
  };
  return { made, sockets, films, rows, said, errors, hear, open };
}

const ASK = { model: "m", question: "Who?", passages: [], max_new_tokens: 2, steps: null, block_length: null, seed: 0, interventions: [] };

test("what is asked before the socket is open is sent when it is", () => {
  const { made, sockets, open } = channel();
  assert.equal(made.run(ASK), 1);
  assert.equal(made.run({ ...ASK, interventions: ["mask-anchors"] }), 2);
  assert.equal(sockets[0].sent.length, 0);
  open();
  assert.deepEqual(sockets[0].sent.map((m) => [m.type, m.id, m.interventions]), [["run", 1, []], ["run", 2, ["mask-anchors"]]]);
  assert.equal(sockets.length, 1);
});

test("steps arrive as films that take each other's place", () => {
  const { made, films, said, hear, open } = channel();
  made.run(ASK);
  open();
  hear({ type: "queued", id: 1 });
  hear({ type: "start", id: 1, film: HEADER });
  for (const step of STEPS) hear(step);
  hear({ type: "done", id: 1, film: small() });
  assert.deepEqual(films.map(([, film, old, done]) => [film.S, old?.S ?? null, done]), [[0, null, false], [1, 0, false], [2, 1, false], [2, 2, true]]);
  assert.equal(said[said.length - 1], "Done.");
  assert.equal(made.running, false);
});

test("steps of a run that was stopped are not listened to", () => {
  const { made, films, sockets, hear, open } = channel();
  made.run(ASK);
  open();
  made.stop();
  hear({ type: "start", id: 1, film: HEADER });
  assert.deepEqual(films, []);
  assert.deepEqual(sockets[0].sent.map((m) => m.type), ["run", "stop"]);
});

test("a lost connection is said, and made anew at the next question", () => {
  const { made, errors, sockets, open } = channel();
  made.run(ASK);
  open();
  sockets[0].onclose!(null as never);
  assert.deepEqual(errors.map(([id]) => id), [null]);
  assert.match(errors[0][1], /lost/);
  assert.equal(made.running, false);
  made.run(ASK);
  assert.equal(sockets.length, 2);
});

test("an error ends its run, with the server's sentence", () => {
  const { made, said, errors, hear, open } = channel();
  made.run(ASK);
  open();
  hear({ type: "error", id: 1, message: "model m is not known" });
  assert.deepEqual(errors, [[1, "model m is not known"]]);
  assert.deepEqual(said, ["Waiting for the server."], "an error is no status");
  assert.equal(made.running, false);
});

test("an error of a run that was stopped is not shown, one of no run is", () => {
  const { made, errors, hear, open } = channel();
  made.run(ASK);
  open();
  made.stop();
  hear({ type: "error", id: 1, message: "too late" });
  hear({ type: "error", id: null, message: "the message is not JSON" });
  assert.deepEqual(errors, [[null, "the message is not JSON"]]);
});

test("a row of attention is asked for once, and comes back under its key", () => {
  const { made, rows, sockets, hear, open } = channel();
  made.attention(3, "key", 0, null, 2, "from");
  made.attention(3, "key", 0, null, 2, "from");
  open();
  assert.equal(sockets[0].sent.length, 1);
  hear({ type: "attention", id: 3, step: 0, layer: null, position: 2, direction: "from", values: [0.5, null] });
  assert.deepEqual(rows, [[3, "key", Float32Array.from([0.5, NaN])]]);
  made.attention(3, "other", 1, null, 2, "to");
  hear({ type: "error", id: 3, message: "no longer kept" });
  assert.deepEqual(rows.slice(1), [[3, "other", "no longer kept"]], "what was answered stays");
});
