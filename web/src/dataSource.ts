/** The interface between the page and its data: a running server, or the files of a static export. */

import type { Table } from "apache-arrow";

export interface Info {
  name: string;
  data: string;
  classes: string[];
  /** "score": the selection has no map, and each class is a column with the score as height. */
  layout: "map" | "score";
  /** Whether DBSCAN on the map made the selection, or it does not say what did. */
  by_dbscan: boolean;
  clusters: boolean;
  votes: boolean;
  scores: boolean;
  selections: string[];
  /** Side of a thumbnail in pixels, thumbnails per line of a sheet, and per sheet. */
  thumb: number;
  sprite_columns: number;
  sprite_limit: number;
  features: boolean;
}

/** Decisions in force, one byte per sample, and how many can be undone and redone. */
export interface Decisions {
  keep: Uint8Array;
  overridden: Uint8Array;
  /** Labels that people gave, -1 where they gave none; null if there are none. */
  newLabel: Int16Array | null;
  undo: number;
  redo: number;
  /** The decision that was undone or redone, in words. */
  moved?: string;
}

export interface FilterInfo {
  methods: Record<string, string>;
  min_samples: number;
  share: number;
  eps?: number;
  curve?: { eps: number[]; share: number[] };
  knee?: Record<string, number>;
}

export interface FilterSettings {
  method: string;
  eps?: number;
  share?: number;
  min_samples?: number;
  knee?: boolean;
}

export interface Preview {
  keep: Uint8Array;
  cluster: Int32Array | null;
  numbers: { dropped: number; share: number; eps?: number | number[]; milliseconds: number };
  /** Times of the request as `performance.now()` returns them. */
  times: { sent: number; answered: number; decoded: number };
}

export interface Comparison {
  keep: Uint8Array;
  /** 1 where the other selection contains the sample. */
  held: Uint8Array;
  numbers: { a: string; b: string } & Record<
    "both_keep" | "both_drop" | "only_a_drops" | "only_b_drops" | "not_in_b" | "jaccard",
    number
  >;
}

export interface OutsideSample {
  id: string;
  label: number;
  split: string;
}

/** Near-copies; `other` is a row of the selection, or n + k for the k-th outside sample. */
export interface CopyLinks {
  row: Int32Array;
  other: Int32Array;
  similarity: Float32Array;
  /** What the similarity is; empty if nobody looked for near-copies. */
  measure: string;
  outside: OutsideSample[];
}

export interface LogEntry {
  time: number;
  kind: "set" | "undo" | "redo";
  keep: boolean;
  reason: string;
  /** The decision in words. */
  text: string;
}

export interface SampleDetail {
  override: { reason: string; time: number } | null;
  neighbours?: { row: number }[];
}

export interface ThumbnailSheet {
  rows: number[];
  bitmap: ImageBitmap;
  /** Index of each row's thumbnail in the sheet. */
  slots: number[];
}

export type ServerEvent =
  | { type: "state"; selection: string }
  | { type: "selections"; selections: string[] }
  | { type: "closing" };

export interface DataSource {
  /** Whether decisions can be made. */
  readonly live: boolean;
  info(): Promise<Info>;
  points(): Promise<Table>;
  decisions(): Promise<Decisions>;
  filterInfo(minSamples?: number): Promise<FilterInfo>;
  /** The majority label around each sample. */
  neighbourhoodLabels(): Promise<Int16Array | null>;
  preview(settings: FilterSettings, clusters: boolean): Promise<Preview>;
  compare(other: string): Promise<Comparison>;
  copies(): Promise<CopyLinks>;
  log(): Promise<LogEntry[]>;
  sample(id: string, neighbours: number): Promise<SampleDetail>;
  /** The URL of the full image; null if only thumbnails are available. */
  imageUrl(id: string): string | null;
  thumbnails(rows: number[]): Promise<ThumbnailSheet[]>;
  decide(ids: string[], keep: boolean, reason: string, label: number | null): Promise<Decisions>;
  undo(): Promise<Decisions>;
  redo(): Promise<Decisions>;
  saveSelection(settings: FilterSettings, name: string): Promise<{ selection: string; path: string }>;
  /** Subscribe to changes made in other windows and to the state of the connection. */
  subscribe(onEvent: (event: ServerEvent) => void, onConnection: (connected: boolean) => void): void;
  /** Show another selection. */
  open(selection: string): void;
}

/** A refused or failed request; the message is shown to the user. */
export class RequestError extends Error {}

export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
