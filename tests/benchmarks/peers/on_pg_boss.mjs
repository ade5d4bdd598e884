// pg-boss: two batches of 500 at a time, each of which ends as one, with one output: the fastest that
// it has. Workers are woken by notifications.

import pg from "pg";
import { PgBoss } from "pg-boss";

import { main, noted, ran } from "./common.mjs";

const connectionString = process.env.DATABASE_URL;
const options = {
  batchSize: 500,
  localConcurrency: 2,
  burstWhenBatchFull: true,
  pollingIntervalSeconds: 0.5,
};
let boss, pool;

async function start() {
  boss = new PgBoss({ connectionString, useListenNotify: true });
  boss.on("error", console.error);
  await boss.start();
}

await main({
  most: 30_000,

  async prepare() {
    pool = new pg.Pool({ connectionString, max: 1 });
    await start();
    await boss.createQueue("nothing", { notify: true });
    await boss.createQueue("clock", { notify: true });
  },

  enqueue: (name, data) => boss.send(name, data),

  async enqueueMany(count) {
    for (let start = 0; start < count; start += 5_000) {
      const size = Math.min(5_000, count - start);
      await boss.insert("nothing", Array.from({ length: size }, (_, n) => ({ data: { n: start + n } })));
    }
  },

  async left() {
    const found = await pool.query("SELECT count(*)::int AS n FROM pgboss.job WHERE state < 'completed'");
    return found.rows[0].n;
  },

  async work() {
    await start();
    await boss.work("nothing", options, async (jobs) => {
      for (const job of jobs) {
        ran(job);
      }
      return { ok: true };
    });
    await boss.work("clock", options, async (jobs) => {
      for (const job of jobs) {
        noted(job.data.key);
      }
    });
  },
});
