/** Small models and maps for the tests. */

import { Table, Utf8, vectorFromArray } from "apache-arrow";
import { Model } from "../src/model";
import type { Info, Decisions, DataSource } from "../src/dataSource";

/** Numbers from 0 to 1, the same every time. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** A cloud of n points with a few far outliers. */
export function cloud(n: number, seed = 1): { x: Float32Array; y: Float32Array } {
  const next = random(seed);
  const bell = (): number => next() + next() + next() + next() - 2;
  const x = Float32Array.from({ length: n }, (_, i) => 30 * bell() + (i % 97 === 0 ? 120 : 0));
  const y = Float32Array.from({ length: n }, () => 10 * bell());
  return { x, y };
}

export interface Sample {
  id: string;
  label: number;
  score: number;
  keep: boolean;
  overridden?: boolean;
  newLabel?: number;
  cluster?: number;
  place?: number;
  suggested?: number;
}

export function model(samples: Sample[], classes: string[]): Model {
  const table = new Table({
    id: vectorFromArray(samples.map((sample) => sample.id), new Utf8()),
    label: vectorFromArray(Int16Array.from(samples, (sample) => sample.label)),
    x: vectorFromArray(Float32Array.from(samples, (_, i) => i)),
    y: vectorFromArray(Float32Array.from(samples, (_, i) => (i * 7) % 5)),
    score: vectorFromArray(Float32Array.from(samples, (sample) => sample.score)),
    cluster: vectorFromArray(Int32Array.from(samples, (sample) => sample.cluster ?? -2)),
    suggested: vectorFromArray(Int16Array.from(samples, (sample) => sample.suggested ?? -1)),
    place: vectorFromArray(Int16Array.from(samples, (sample) => sample.place ?? sample.label)),
  });
  const decisions: Decisions = {
    keep: Uint8Array.from(samples, (sample) => Number(sample.keep)),
    overridden: Uint8Array.from(samples, (sample) => Number(sample.overridden ?? false)),
    newLabel: samples.some((one) => one.newLabel !== undefined) ? Int16Array.from(samples, (one) => one.newLabel ?? -1) : null,
    undo: 0,
    redo: 0,
  };
  const info = { name: "a", classes, layout: "map", clusters: true, scores: true, votes: false } as unknown as Info;
  return new Model({ live: true } as DataSource, info, table, decisions);
}

/** The theme that `colours` asks the page for. */
export function setTheme(theme: "light" | "dark"): void {
  (globalThis as Record<string, unknown>)["document"] = { documentElement: { dataset: { theme } } };
}
