// Code that the adapters in Node share: what common.py is for Python.
//
// An adapter has prepare(), enqueue(name, data), enqueueMany(count), left(), work() and most. Its
// handlers call ran and noted.

import fs from "node:fs";
import readline from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const folder = () => process.env.BENCH_FOLDER;
// Of the clock that time.monotonic() reads in Python.
const now = () => Number(process.hrtime.bigint()) / 1e9;
let began = false;
let count = 0;

// Called by each task of one system call.
export function ran() {
  if (!began) {
    began = true;
    begin();
  }
  fs.accessSync("/");
  count += 1;
  return { ok: true };
}

function begin() {
  fs.writeFileSync(`${folder()}/began-${process.pid}`, String(now()));
  const file = fs.openSync(`${folder()}/count-${process.pid}`, "w");
  const bytes = Buffer.alloc(8);
  setInterval(() => {
    bytes.writeBigUInt64LE(BigInt(count));
    fs.writeSync(file, bytes, 0, 8, 0);
  }, 20).unref();
}

// Called by tasks that tell when they began.
export function noted(key) {
  fs.appendFileSync(`${folder()}/clock`, `${key} ${now()}\n`);
  return { ok: true };
}

const orders = {
  async enqueue(adapter, count) {
    const start = now();
    for (let number = 0; number < count; number += 1) {
      await adapter.enqueue("nothing", { n: number });
    }
    return now() - start;
  },
  async enqueue_many(adapter, count) {
    const start = now();
    await adapter.enqueueMany(count);
    return now() - start;
  },
  async clock(adapter, count, every) {
    const start = now();
    const sent = [];
    for (let number = 0; number < count; number += 1) {
      await sleep(Math.max(0, (start + number * every - now()) * 1000));
      sent.push(now());
      await adapter.enqueue("clock", { key: number });
    }
    return sent;
  },
  left: (adapter) => adapter.left(),
};

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

export async function main(adapter) {
  if (process.argv[2] === "work") {
    await adapter.work();
    return;
  }
  await adapter.prepare();
  answer(adapter.most);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, ...values] = line.split(" ");
    answer(await orders[order](adapter, ...values.map(Number)));
  }
  process.exit(0);
}
