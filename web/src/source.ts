/** Where the page's data comes from: the live server, or plain files of an export. */

import type { Table } from "apache-arrow";

export interface Info {
  name: string;
  samples: number;
  data: string;
  classes: string[];
  per_class: number[];
  layout: "map" | "score";
  clusters: boolean;
  votes: boolean;
  scores: boolean;
  method: string;
  settings: Record<string, unknown>;
  selections: string[];
  thumb: number;
  sprite_columns: number;
  sprite_limit: number;
  features: boolean;
}

export interface Masks {
  keep: Uint8Array;
  overruled: Uint8Array;
  undo: number;
  redo: number;
}

export interface KnobsInfo {
  methods: Record<string, string>;
  min_samples: number;
  share: number;
  eps?: number;
  curve?: { eps: number[]; share: number[] };
  knee?: Record<string, number>;
}

export interface Settings {
  method: string;
  eps?: number;
  share?: number;
  min_samples?: number;
  knee?: boolean;
  seed?: number;
}

export interface PreviewNumbers {
  method: string;
  dropped: number;
  share: number;
  dropped_per_class: number[];
  eps?: number | number[];
  min_samples?: number;
  milliseconds: number;
}

/** Moments of one answer, as `performance.now` gives them. */
export interface Times {
  sent: number;
  answered: number;
  decoded: number;
}

export interface Preview {
  times: Times;
  keep: Uint8Array;
  cluster: Int32Array | null;
  numbers: PreviewNumbers;
}

export interface Comparison {
  keep: Uint8Array;
  held: Uint8Array;
  numbers: {
    a: string;
    b: string;
    both_keep: number;
    both_drop: number;
    only_a_drops: number;
    only_b_drops: number;
    not_in_b: number;
    jaccard: number;
  };
}

export interface LogEntry {
  time: number;
  kind: "set" | "undo" | "redo";
  keep: boolean;
  reason: string;
  count: number;
  ids: string[];
}

export interface SampleDetail {
  override: { keep: boolean; reason: string; time: number } | null;
  neighbours?: { row: number; likeness: number }[];
}

export interface Sheet {
  rows: number[];
  bitmap: ImageBitmap;
  /** Where each of `rows` lies in the picture, counted in thumbnails. */
  slots: number[];
}

export type News =
  | { type: "state"; selection: string }
  | { type: "selections"; selections: string[] }
  | { type: "closing" };

export interface Source {
  readonly live: boolean;
  info(): Promise<Info>;
  points(): Promise<Table>;
  state(): Promise<Masks>;
  knobs(minSamples?: number): Promise<KnobsInfo>;
  /** The label that prevails around each sample. */
  places(): Promise<Int16Array | null>;
  preview(settings: Settings, clusters: boolean): Promise<Preview>;
  compare(other: string): Promise<Comparison>;
  log(): Promise<LogEntry[]>;
  sample(id: string, neighbours: number): Promise<SampleDetail>;
  /** The address of one whole image, or null where only thumbnails are to be had. */
  imageUrl(id: string): string | null;
  sheet(rows: number[]): Promise<Sheet[]>;
  decide(ids: string[], keep: boolean, reason: string): Promise<Masks>;
  undo(): Promise<Masks>;
  redo(): Promise<Masks>;
  use(settings: Settings, name: string): Promise<{ selection: string; path: string }>;
  /** Call `heard` with news of other windows; `connected` tells whether the server answers. */
  listen(heard: (news: News) => void, connected: (yes: boolean) => void): void;
  /** The address of this page for another selection. */
  pageFor(selection: string): string;
}

/** What the server refused, in its own words. */
export class Refused extends Error {}
