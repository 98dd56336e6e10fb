/** Which colour each sample has on the map, and the legend that explains it. */

import { brief, count } from "./dom";
import { RING } from "./map/renderer";
import type { Model } from "./model";
import { ascending } from "./order";

export type ColourBy = "class" | "decision" | "cluster" | "place" | "score" | "votes" | "comparison";

export interface LegendItem {
  colour: string;
  text: string;
  count: number;
  /** Drawn as a ring. */
  hollow?: boolean;
}

export interface Encoding {
  palette: string[];
  /** Per row, an index into `palette`. */
  index: Uint8Array | Uint16Array;
  /** Per row: 0 kept, 1 dropped, 2 decided by hand, 3 dropped and drawn as a ring. */
  state: Uint8Array;
  /** Opacity of the four states. */
  opacity: [number, number, number, number];
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

/** Colours before it is settled how dropped samples are drawn. */
interface Colouring {
  palette: string[];
  index: Uint8Array | Uint16Array;
  /** Opacity of what is kept and of what is dropped. */
  opacity: [number, number];
  legend: LegendItem[];
  ends?: [string, string];
}

export function encode(model: Model): Encoding {
  const { palette, index, opacity, legend, ends } = colouring(model);
  const { n, shown, overruled, droppedStyle: style } = model;
  const state = new Uint8Array(n);
  const out = style === "ring" ? RING : 1;
  for (let i = 0; i < n; i++) state[i] = overruled[i] ? 2 : shown[i] ? 0 : out;
  const about: LegendItem = { colour: grey(), text: "dropped", count: model.counts.dropped, hollow: style === "ring" };
  const greyed = style === "grey";
  if (greyed) for (let i = 0; i < n; i++) if (!shown[i]) index[i] = palette.length;
  return {
    palette: greyed ? [...palette, grey()] : palette,
    index,
    state,
    opacity: [opacity[0], greyed ? 0.6 : opacity[1], 1, 1],
    // Where the colour already tells, the legend does too.
    legend: style !== "plain" && model.colourBy !== "decision" ? [...legend, about] : legend,
    ...(ends === undefined ? {} : { ends }),
  };
}

function colouring(model: Model): Colouring {
  switch (model.colourBy) {
    case "class":
      return byClass(model);
    case "place":
      return byPlace(model);
    case "decision":
      return byDecision(model);
    case "cluster":
      return byCluster(model);
    case "score":
      return byScale(model.score);
    case "votes":
      return byScale(model.votes ?? model.score);
    case "comparison":
      return byComparison(model);
  }
}

/** The classes' own colours are in the list of classes. */
function byClass(model: Model): Colouring {
  const classes = model.info.classes.length;
  const palette = model.info.classes.map((_, label) => classColour(label, classes));
  return { palette, index: Uint16Array.from(model.label), opacity: [0.82, 0.82], legend: [] };
}

function byPlace(model: Model): Colouring {
  const classes = model.info.classes.length;
  const palette = [...model.info.classes.map((_, label) => classColour(label, classes)), grey()];
  const index = new Uint16Array(model.n);
  let strangers = 0;
  for (let i = 0; i < model.n; i++) {
    const stranger = model.place !== null && model.place[i] !== model.label[i];
    index[i] = stranger ? (model.label[i] ?? 0) : classes;
    if (stranger) strangers++;
  }
  const legend = [
    { colour: CLASSES[0] ?? "", text: "lies among another class", count: strangers },
    { colour: grey(), text: "lies among its own", count: model.n - strangers },
  ];
  return { palette, index, opacity: [0.75, 0.75], legend };
}

function byDecision(model: Model): Colouring {
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
  return { palette, index, opacity: [0.5, 0.95], legend: legendOf(palette, texts, counts) };
}

function byCluster(model: Model): Colouring {
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
  return { palette, index, opacity: [0.8, 0.6], legend };
}

const ranked = new WeakMap<Float32Array, Uint8Array>();

/** Colours by rank, so that a few extreme values do not flatten the rest. */
function byScale(values: Float32Array): Colouring {
  let steps = ranked.get(values);
  if (steps === undefined) ranked.set(values, (steps = stepsOf(values)));
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return { palette: scale(), index: steps.slice(), opacity: [0.8, 0.8], legend: [], ends: [brief(low), brief(high)] };
}

/** Per row a step of the scale; equal values share the step of the first of them. */
function stepsOf(values: Float32Array): Uint8Array {
  const order = ascending(values);
  const steps = new Uint8Array(values.length);
  let first = 0;
  order.forEach((row, rank) => {
    if (values[row] !== values[order[first] ?? 0]) first = rank;
    steps[row] = Math.min(STEPS - 1, Math.floor((first / Math.max(values.length - 1, 1)) * STEPS));
  });
  return steps;
}

function byComparison(model: Model): Colouring {
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
  return { palette, index, opacity: [0.85, 0.85], legend: legendOf(palette, texts, counts) };
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
