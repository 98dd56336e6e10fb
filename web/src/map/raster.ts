/**
 * Draws points on the processor, into the pixels of a 2D canvas.
 *
 * Where there is no GPU the browser emulates one, and emulated points take about a microsecond
 * each. Copying a small mask per point is ten times faster, and works without WebGL too.
 */

import { RIM, RING, STATE_BYTES, type Frame, type Pass, type PointRenderer, type Rgb } from "./renderer";

/** Masks are made for so many positions of a point's middle between pixels, across and down. */
const PHASES = 4;

/** How much of each pixel around a point is covered, times its opacity: 0 to 256. */
interface Mask {
  side: number;
  cover: Uint16Array;
  /** The pixels that are covered, relative to the one of the middle, and by how much. */
  offsets: Int32Array;
  shares: Uint16Array;
}

/** How points of one state are drawn. */
interface Kind {
  diameter: number;
  rim: number;
  opacity: number;
  /** A mask for each phase, made when it is needed. */
  masks: (Mask | undefined)[];
}

/** All that a pass needs besides the points. */
interface Job {
  frame: Frame;
  width: number;
  height: number;
  kinds: Kind[];
  palette: Uint32Array;
  /** Masks the number of a colour: 0 takes the first one for all points. */
  colours: number;
}

export class RasterRenderer implements PointRenderer {
  readonly kind = "canvas";
  private xy = new Float32Array();
  private state = new Uint8Array();
  private image: ImageData | null = null;
  private pixels = new Uint32Array();

  constructor(private readonly context: CanvasRenderingContext2D) {}

  setPositions(xy: Float32Array<ArrayBuffer>): void {
    this.xy = xy;
  }

  setState(state: Uint8Array<ArrayBuffer>): void {
    this.state = state;
  }

  resize(width: number, height: number): void {
    const { canvas } = this.context;
    canvas.width = width;
    canvas.height = height;
    this.image = this.context.createImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  draw(frame: Frame): void {
    const { image } = this;
    if (image === null) return;
    this.pixels.fill(frame.style.background === null ? 0 : packed(frame.style.background));
    for (const pass of frame.passes) this.drawPass(frame, pass, image.width, image.height);
    this.context.putImageData(image, 0, 0);
  }

  finish(): void {
    // Nothing is under way.
  }

  private drawPass(frame: Frame, pass: Pass, width: number, height: number): void {
    const kinds = frame.style.sizes.map((size, state): Kind => ({
      diameter: (size + pass.grow) * frame.ratio,
      rim: state === RING && pass.colour === undefined ? RIM * frame.ratio : 0,
      opacity: (frame.style.opacity[state] ?? 1) * pass.opacity,
      masks: new Array<Mask | undefined>(PHASES * PHASES).fill(undefined),
    }));
    const colours = pass.colour === undefined ? frame.style.palette : [pass.colour];
    const palette = Uint32Array.from(colours.map(packed));
    const job = { frame, width, height, kinds, palette, colours: pass.colour === undefined ? 0xffff : 0 };
    if (pass.slots instanceof Uint32Array) for (const slot of pass.slots) this.drawSlots(job, slot, slot + 1);
    else for (const { start, count } of pass.slots) this.drawSlots(job, start, start + count);
  }

  /** Draw the slots from `start` to before `end`. */
  private drawSlots(job: Job, start: number, end: number): void {
    const { xy, state, pixels } = this;
    const { width, height, kinds, palette, colours } = job;
    const { scale, left, top } = job.frame;
    for (let slot = start; slot < end; slot++) {
      const at = STATE_BYTES * slot;
      if (state[at + 3] === 0) continue;
      const kind = kinds[state[at + 2] as number] as Kind;
      const x = (xy[2 * slot] as number) * scale + left;
      const y = top - (xy[2 * slot + 1] as number) * scale;
      const reach = kind.diameter / 2 + 2;
      if (!(x > -reach && y > -reach && x < width + reach && y < height + reach)) continue;
      const column = Math.floor(x);
      const row = Math.floor(y);
      const phase = Math.floor((y - row) * PHASES) * PHASES + Math.floor((x - column) * PHASES);
      const mask = (kind.masks[phase] ??= makeMask(kind, phase, width));
      const colour = palette[((state[at] as number) | ((state[at + 1] as number) << 8)) & colours] as number;
      const redBlue = colour & 0xff00ff;
      const green = colour & 0x00ff00;
      if (x < reach || y < reach || x > width - reach || y > height - reach) {
        stampClipped(pixels, width, height, column - (mask.side >> 1), row - (mask.side >> 1), mask, colour);
        continue;
      }
      const middle = row * width + column;
      const { offsets, shares } = mask;
      for (let k = 0; k < offsets.length; k++) {
        const pixel = middle + (offsets[k] as number);
        pixels[pixel] = blended(pixels[pixel] as number, redBlue, green, shares[k] as number);
      }
    }
  }
}

/** Coverage of a disc, or of a ring where there is a rim, with its middle at a phase. */
function makeMask({ diameter, rim, opacity }: Kind, phase: number, width: number): Mask {
  const half = Math.ceil(diameter / 2 + 0.5);
  const side = 2 * half + 1;
  const cover = new Uint16Array(side * side);
  const middleX = half + ((phase % PHASES) + 0.5) / PHASES;
  const middleY = half + (Math.floor(phase / PHASES) + 0.5) / PHASES;
  const offsets: number[] = [];
  const shares: number[] = [];
  for (let row = 0; row < side; row++) {
    for (let column = 0; column < side; column++) {
      const away = Math.hypot(column + 0.5 - middleX, row + 0.5 - middleY);
      let share = clamp(diameter / 2 - away + 0.5);
      if (rim > 0) share *= clamp(away - diameter / 2 + rim + 0.5);
      const parts = Math.round(256 * share * opacity);
      cover[row * side + column] = parts;
      if (parts === 0) continue;
      offsets.push((row - half) * width + column - half);
      shares.push(parts);
    }
  }
  return { side, cover, offsets: Int32Array.from(offsets), shares: Uint16Array.from(shares) };
}

/** Draw a point of which a part may lie outside. */
function stampClipped(pixels: Uint32Array, width: number, height: number, left: number, top: number, mask: Mask, colour: number): void {
  const { side, cover } = mask;
  const c0 = Math.max(0, -left);
  const c1 = Math.min(side, width - left);
  const r0 = Math.max(0, -top);
  const r1 = Math.min(side, height - top);
  const redBlue = colour & 0xff00ff;
  const green = colour & 0x00ff00;
  for (let row = r0; row < r1; row++) {
    const from = (top + row) * width + left;
    for (let column = c0; column < c1; column++) {
      const share = cover[row * side + column] as number;
      if (share !== 0) pixels[from + column] = blended(pixels[from + column] as number, redBlue, green, share);
    }
  }
}

/** A pixel with `share` of 256 parts of a colour over it; two channels are mixed at once. */
function blended(under: number, redBlue: number, green: number, share: number): number {
  const rest = 256 - share;
  const rb = ((Math.imul(under & 0xff00ff, rest) + Math.imul(redBlue, share) + 0x800080) >>> 8) & 0xff00ff;
  const g = ((Math.imul(under & 0x00ff00, rest) + Math.imul(green, share) + 0x008000) >>> 8) & 0x00ff00;
  return (0xff000000 | rb | g) >>> 0;
}

/** As a 2D canvas keeps it on little-endian machines, which all browsers run on. */
function packed([r, g, b]: Rgb): number {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function clamp(value: number): number {
  return Math.max(0, Math.min(1, value));
}
