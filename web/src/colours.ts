/** The colour of each sample on the map, and the legend that explains it. */

import { brief, count } from "./dom";
import { parseColour, RING } from "./map/renderer";
import type { ColourBy, Model } from "./model";
import { ascending, extent } from "./sorting";
import { isDark } from "./theme";

interface LegendItem {
  colour: string;
  text: string;
  count: number;
  /** Drawn as a ring. */
  hollow?: boolean;
}

/** Colours without regard to how dropped samples are drawn. */
interface Colouring {
  palette: string[];
  /** Per row, an index into `palette`. */
  index: Uint8Array | Uint16Array;
  /** Opacity of kept and of dropped samples. */
  opacity: [number, number];
  legend: LegendItem[];
  /** For a scale: the texts at its ends. */
  ends?: [string, string];
}

export interface Encoding extends Omit<Colouring, "opacity"> {
  /** Per row: 0 kept, 1 dropped, 2 decided by hand, 3 dropped and drawn as a ring. */
  state: Uint8Array;
  /** Opacity of the four states. */
  opacity: [number, number, number, number];
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

/** The colour of samples in the background. */
export function grey(): string {
  return isDark() ? "#59616d" : "#b3b9c2";
}

export function classColour(label: number, classes: number): string {
  if (classes <= CLASSES.length) return CLASSES[label % CLASSES.length] ?? "#888888";
  // Hues by the golden angle in three lightnesses keep consecutive classes apart.
  return fromHsl((label * 137.508) % 360, 0.58, [0.56, 0.44, 0.68][label % 3] ?? 0.56);
}

export function encode(model: Model): Encoding {
  const { opacity, ...colouring } = COLOURINGS[model.colourBy](model);
  const { palette, index, legend } = colouring;
  const { n, shown, overridden, droppedStyle: style } = model;
  const [greyed, ring] = [style === "grey", style === "ring"];
  const state = new Uint8Array(n);
  for (let row = 0; row < n; row++) {
    const kept = shown[row] === 1;
    state[row] = overridden[row] === 1 ? 2 : kept ? 0 : ring ? RING : 1;
    if (greyed && !kept) index[row] = palette.length;
  }
  const dropped: LegendItem = { colour: grey(), text: "dropped", count: model.counts.dropped, hollow: ring };
  return {
    ...colouring,
    palette: greyed ? [...palette, grey()] : palette,
    state,
    opacity: [opacity[0], greyed ? 0.6 : opacity[1], 1, 1],
    // The legend of decisions already contains the dropped samples.
    legend: style !== "plain" && model.colourBy !== "decision" ? [...legend, dropped] : legend,
  };
}

const COLOURINGS: Record<ColourBy, (model: Model) => Colouring> = {
  class: byClass,
  decision: byDecision,
  cluster: byCluster,
  neighbourhood: byNeighbourhood,
  score: (model) => byScale(model.score),
  votes: (model) => byScale(model.votes ?? model.score),
  comparison: byComparison,
};

function classPalette({ info }: Model): string[] {
  return info.classes.map((_, label) => classColour(label, info.classes.length));
}

/** The list of classes is the legend. */
function byClass(model: Model): Colouring {
  return { palette: classPalette(model), index: new Uint16Array(model.label), opacity: [0.82, 0.82], legend: [] };
}

/** Samples that lie among another class have the colour of their label. */
function byNeighbourhood(model: Model): Colouring {
  const classes = model.info.classes.length;
  const index = new Uint16Array(model.n).fill(classes);
  let others = 0;
  for (let row = 0; row < model.n; row++) {
    const label = model.label[row] as number;
    if (model.neighbourhoodLabel === null || model.neighbourhoodLabel[row] === label) continue;
    index[row] = label;
    others++;
  }
  const legend = [
    { colour: CLASSES[0] ?? "", text: "lies among another class", count: others },
    { colour: grey(), text: "lies among its own class", count: model.n - others },
  ];
  return { palette: [...classPalette(model), grey()], index, opacity: [0.75, 0.75], legend };
}

function byDecision(model: Model): Colouring {
  const palette = [STATES.kept, STATES.dropped, STATES.newlyDropped, STATES.newlyKept, STATES.hand, STATES.hand];
  const texts = ["kept", "dropped", "newly dropped", "newly kept", "kept by hand", "dropped by hand"];
  const group = (row: number): number => {
    const kept = model.kept(row);
    if (model.overridden[row]) return kept ? 4 : 5;
    if (model.preview !== null && kept !== (model.keep[row] === 1)) return kept ? 3 : 2;
    return kept ? 0 : 1;
  };
  return byGroup(model, palette, texts, group, [0.5, 0.95]);
}

function byGroup(model: Model, palette: string[], texts: string[], group: (row: number) => number, opacity: [number, number]): Colouring {
  const index = new Uint8Array(model.n);
  const counts = new Int32Array(palette.length);
  for (let row = 0; row < model.n; row++) {
    const at = group(row);
    index[row] = at;
    (counts[at] as number) += 1;
  }
  const legend = palette.map((colour, n) => ({ colour, text: texts[n] ?? "", count: counts[n] ?? 0 }));
  return { palette, index, opacity, legend: legend.filter((item, n) => n < 2 || item.count > 0) };
}

function byCluster(model: Model): Colouring {
  const hues = 24;
  const palette = [...Array.from({ length: hues }, (_, n) => fromHsl((n * 137.508) % 360, 0.55, 0.56)), grey()];
  const cluster = model.preview?.cluster ?? model.cluster;
  const index = new Uint8Array(model.n).fill(hues);
  const clusters = new Set<number>();
  let noise = 0;
  for (let row = 0; row < model.n; row++) {
    const its = cluster[row] as number;
    if (its < 0) noise++;
    else {
      index[row] = its % hues;
      clusters.add(its);
    }
  }
  const legend = [
    { colour: palette[0] ?? "", text: `in ${count(clusters.size)} cluster${clusters.size === 1 ? "" : "s"}`, count: model.n - noise },
    { colour: grey(), text: "in none", count: noise },
  ];
  return { palette, index, opacity: [0.8, 0.6], legend };
}

const stepsByValues = new WeakMap<Float32Array, Uint8Array>();

/** Colours by rank, so that a few extreme values do not flatten the rest. */
function byScale(values: Float32Array): Colouring {
  let steps = stepsByValues.get(values);
  if (steps === undefined) stepsByValues.set(values, (steps = rankSteps(values)));
  const [low, high] = extent(values);
  return { palette: scale(), index: steps.slice(), opacity: [0.8, 0.8], legend: [], ends: [brief(low), brief(high)] };
}

/** Per row a step of the scale; equal values have the same step. */
function rankSteps(values: Float32Array): Uint8Array {
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
  const b = model.comparison?.numbers.b ?? "B";
  const palette = [grey(), "#8a5fd0", STATES.dropped, STATES.newlyKept, grey()];
  const texts = ["both keep", "both drop", `only ${model.info.name} drops`, `only ${b} drops`, `not in ${b}`];
  return byGroup(model, palette, texts, (row) => comparisonGroup(model, row), [0.85, 0.85]);
}

/** 0 both keep, 1 both drop, 2 only A drops, 3 only B drops, 4 not in B. */
export function comparisonGroup(model: Model, row: number): number {
  const other = model.comparison;
  if (other === null) return 0;
  if (!other.held[row]) return 4;
  if (model.keep[row]) return other.keep[row] ? 0 : 3;
  return other.keep[row] ? 2 : 1;
}

export function scale(): string[] {
  return Array.from({ length: STEPS }, (_, n) => {
    const at = (n / (STEPS - 1)) * (VIRIDIS.length - 1);
    const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
    return blend(VIRIDIS[low] ?? "", VIRIDIS[low + 1] ?? "", at - low);
  });
}

function blend(a: string, b: string, share: number): string {
  const to = parseColour(b);
  return hex(parseColour(a).map((from, n) => Math.round(from + ((to[n] ?? 0) - from) * share)));
}

function fromHsl(hue: number, saturation: number, lightness: number): string {
  const chroma = saturation * Math.min(lightness, 1 - lightness);
  const channel = (n: number): number => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return hex([0, 8, 4].map(channel));
}

function hex(parts: number[]): string {
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}
