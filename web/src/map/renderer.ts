/** The interface of the two renderers: WebGL2 and, without a GPU, a 2D canvas. */

import type { Range } from "./pointIndex";

/** Bytes per point in the state: colour (low, high), state, visible. */
export const STATE_BYTES = 4;
/** The state that is drawn as a ring. */
export const RING = 3;
/** CSS pixels from the outer edge of a ring to its hole. */
export const RIM = 1.6;

export type Four = [number, number, number, number];
export type Rgb = [number, number, number];

export interface Style {
  /** Colours that the state refers to. */
  palette: Rgb[];
  /** Opacity and diameter (CSS pixels) of each of the four states. */
  opacity: Four;
  sizes: Four;
  /** Null: transparent. */
  background: Rgb | null;
}

/** Points to draw in one go. */
export interface Pass {
  /** Which slots: ranges of consecutive ones, or a list. */
  slots: Range[] | Uint32Array<ArrayBuffer>;
  /** A factor of the opacity. */
  opacity: number;
  /** CSS pixels added to the diameter. */
  grow: number;
  /** One colour for all, instead of their own. */
  colour?: Rgb;
}

export interface Frame {
  /** From map to device pixels: x · scale + left, and top − y · scale. */
  scale: number;
  left: number;
  top: number;
  /** Device pixels per CSS pixel. */
  ratio: number;
  style: Style;
  passes: Pass[];
}

export interface PointRenderer {
  readonly kind: "webgl2" | "canvas";
  /** Coordinates of all points in drawing order: x and y of each. Sent once. */
  setPositions(xy: Float32Array<ArrayBuffer>): void;
  /** The state of all points, `STATE_BYTES` each. */
  setState(state: Uint8Array<ArrayBuffer>): void;
  /** The size of the canvas in device pixels. */
  resize(width: number, height: number): void;
  draw(frame: Frame): void;
  /** Wait until everything is drawn. */
  finish(): void;
}

export function parseColour(hex: string): Rgb {
  const value = parseInt(hex.slice(1), 16);
  return [(value >> 16) & 255, (value >> 8) & 255, value & 255];
}
