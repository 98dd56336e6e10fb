/** Which colour each sample has on the map, and the legend that explains it. */

import { brief, count } from "./dom";
import type { Model } from "./model";

export type ColourBy = "class" | "decision" | "cluster" | "place" | "score" | "votes" | "comparison";

export interface LegendItem {
  colour: string;
  text: string;
  count: number;
}

export interface Encoding {
  palette: string[];
  /** Per row, an index into `palette`. */
  index: Uint8Array | Uint16Array;
  /** Per row: 0 kept, 1 dropped, 2 decided by hand. */
  state: Uint8Array;
  /** Opacity of the three states. */
  opacity: [number, number, number];
  legend: LegendItem[];
  /** For a scale: the texts at its two ends. */
  ends?: [string, string];
}

const CLASSES = [
  "#4c86c6", "#ef8b3a", "#e0565b", "#45b3a8", "#5aa64e",
  "#e2bd3a", "#a874c4", "#f58fb0", "#a5745a", "#7d8be8",
];
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const STEPS = 64;

export const STATES = {
  kept: "#3f8fd2",
  dropped: "#e8643c",
  newlyDropped: "#d6249f",
  newlyKept: "#2fa866",
  hand: "#f2b632",
};

export function dark(): boolean {
  return document.documentElement.dataset["theme"] === "dark";
}

/** What is out of play: visible, but behind the rest. */
export function grey(): string {
  return dark() ? "#59616d" : "#b3b9c2";
}

export function classColour(label: number, classes: number): string {
  if (classes <= CLASSES.length) return CLASSES[label % CLASSES.length] ?? "#888888";
  // Golden-angle hues, in three lightnesses, keep neighbours apart for many classes.
  return fromHsl((label * 137.508) % 360, 0.58, [0.56, 0.44, 0.68][label % 3] ?? 0.56);
}

export function encode(model: Model): Encoding {
  const state = states(model);
  switch (model.colourBy) {
    case "class":
      return byClass(model, state);
    case "place":
      return byPlace(model, state);
    case "decision":
      return byDecision(model, state);
    case "cluster":
      return byCluster(model, state);
    case "score":
      return byScale(model, state, model.score);
    case "votes":
      return byScale(model, state, model.votes ?? model.score);
    case "comparison":
      return byComparison(model, state);
  }
}

function states(model: Model): Uint8Array {
  const state = new Uint8Array(model.n);
  for (let i = 0; i < model.n; i++) state[i] = model.overruled[i] ? 2 : model.kept(i) ? 0 : 1;
  return state;
}

function byClass(model: Model, state: Uint8Array): Encoding {
  const classes = model.info.classes.length;
  const palette = [...model.info.classes.map((_, label) => classColour(label, classes)), grey()];
  const index = new Uint16Array(model.n);
  let dropped = 0;
  for (let i = 0; i < model.n; i++) {
    const out = !model.kept(i);
    index[i] = out ? classes : (model.label[i] ?? 0);
    if (out) dropped++;
  }
  const legend = [{ colour: grey(), text: "dropped", count: dropped }];
  return { palette, index, state, opacity: [0.82, 0.6, 1], legend };
}

function byPlace(model: Model, state: Uint8Array): Encoding {
  const classes = model.info.classes.length;
  const palette = [...model.info.classes.map((_, label) => classColour(label, classes)), grey()];
  const index = new Uint16Array(model.n);
  let strangers = 0;
  for (let i = 0; i < model.n; i++) {
    const stranger = model.place[i] !== model.label[i];
    index[i] = stranger ? (model.label[i] ?? 0) : classes;
    if (stranger) strangers++;
  }
  const legend = [
    { colour: CLASSES[0] ?? "", text: "lies among another class", count: strangers },
    { colour: grey(), text: "lies among its own", count: model.n - strangers },
  ];
  return { palette, index, state, opacity: [0.75, 0.75, 1], legend };
}

function byDecision(model: Model, state: Uint8Array): Encoding {
  const palette = [STATES.kept, STATES.dropped, STATES.newlyDropped, STATES.newlyKept, STATES.hand, STATES.hand];
  const texts = ["kept", "dropped", "newly dropped", "newly kept", "kept by hand", "dropped by hand"];
  const index = new Uint8Array(model.n);
  const counts = new Array<number>(palette.length).fill(0);
  for (let i = 0; i < model.n; i++) {
    const now = model.kept(i);
    const before = model.keep[i] === 1;
    let at = now ? 0 : 1;
    if (model.overruled[i]) at = now ? 4 : 5;
    else if (model.preview !== null && now !== before) at = now ? 3 : 2;
    index[i] = at;
    counts[at] = (counts[at] ?? 0) + 1;
  }
  return { palette, index, state, opacity: [0.5, 0.95, 1], legend: legendOf(palette, texts, counts) };
}

function byCluster(model: Model, state: Uint8Array): Encoding {
  const hues = 24;
  const palette = [...Array.from({ length: hues }, (_, n) => fromHsl((n * 137.508) % 360, 0.55, 0.56)), grey()];
  const cluster = model.preview?.cluster ?? model.cluster;
  const index = new Uint8Array(model.n);
  const seen = new Set<number>();
  let noise = 0;
  for (let i = 0; i < model.n; i++) {
    const its = cluster[i] ?? -2;
    if (its < 0) {
      index[i] = hues;
      noise++;
    } else {
      index[i] = its % hues;
      seen.add(its);
    }
  }
  const legend = [
    { colour: palette[0] ?? "", text: `in ${count(seen.size)} clusters`, count: model.n - noise },
    { colour: grey(), text: "in none", count: noise },
  ];
  return { palette, index, state, opacity: [0.8, 0.6, 1], legend };
}

/** Colours by rank, so that a few extreme values do not flatten the rest. */
function byScale(model: Model, state: Uint8Array, values: Float32Array): Encoding {
  const sorted = Float32Array.from(values).sort();
  const index = new Uint8Array(model.n);
  for (let i = 0; i < model.n; i++) {
    const rank = lowerBound(sorted, values[i] ?? 0) / Math.max(model.n - 1, 1);
    index[i] = Math.min(STEPS - 1, Math.floor(rank * STEPS));
  }
  const ends: [string, string] = [brief(sorted[0] ?? 0), brief(sorted[model.n - 1] ?? 0)];
  return { palette: scale(), index, state, opacity: [0.8, 0.8, 1], legend: [], ends };
}

function byComparison(model: Model, state: Uint8Array): Encoding {
  const palette = [grey(), "#8a5fd0", STATES.dropped, STATES.newlyKept, grey()];
  const a = model.info.name;
  const b = model.comparison?.numbers.b ?? "B";
  const texts = ["both keep", "both drop", `only ${a} drops`, `only ${b} drops`, `not in ${b}`];
  const index = new Uint8Array(model.n);
  const counts = new Array<number>(palette.length).fill(0);
  for (let i = 0; i < model.n; i++) {
    const at = comparisonGroup(model, i);
    index[i] = at;
    counts[at] = (counts[at] ?? 0) + 1;
  }
  return { palette, index, state, opacity: [0.85, 0.85, 1], legend: legendOf(palette, texts, counts) };
}

/** 0 both keep, 1 both drop, 2 only A drops, 3 only B drops, 4 not in B. */
export function comparisonGroup(model: Model, row: number): number {
  const other = model.comparison;
  if (other === null) return 0;
  if (!other.held[row]) return 4;
  const mine = model.keep[row] === 1;
  const its = other.keep[row] === 1;
  if (mine) return its ? 0 : 3;
  return its ? 2 : 1;
}

function legendOf(palette: string[], texts: string[], counts: number[]): LegendItem[] {
  const items = palette.map((colour, n) => ({ colour, text: texts[n] ?? "", count: counts[n] ?? 0 }));
  return items.filter((item, n) => n < 2 || item.count > 0);
}

export function scale(): string[] {
  return Array.from({ length: STEPS }, (_, n) => {
    const at = (n / (STEPS - 1)) * (VIRIDIS.length - 1);
    const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
    return blend(VIRIDIS[low] ?? "", VIRIDIS[low + 1] ?? "", at - low);
  });
}

function blend(a: string, b: string, share: number): string {
  const mixed = [1, 3, 5].map((at) => {
    const from = parseInt(a.slice(at, at + 2), 16);
    const to = parseInt(b.slice(at, at + 2), 16);
    return Math.round(from + (to - from) * share);
  });
  return hex(mixed);
}

function fromHsl(hue: number, saturation: number, lightness: number): string {
  const chroma = saturation * Math.min(lightness, 1 - lightness);
  return hex(
    [0, 8, 4].map((n) => {
      const k = (n + hue / 30) % 12;
      return Math.round(255 * (lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
    }),
  );
}

function hex(parts: number[]): string {
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

function lowerBound(sorted: Float32Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? 0) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
