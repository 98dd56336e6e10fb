/** Helpers to build elements. They set no `style` attributes, which the content policy forbids. */

type Value = string | number | boolean | undefined | ((event: never) => void);
type Attributes = Record<string, Value>;
type Child = Node | string | null;

export function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value as EventListener);
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : String(value));
  }
}

function build<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  setAttributes(element, attributes);
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return build(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function button(className: string, onclick: () => void, attributes: Attributes = {}, ...children: Child[]): HTMLButtonElement {
  return h("button", { type: "button", className, onclick, ...attributes }, ...children);
}

/** A square button with an icon; its label is also its tooltip. */
export function iconButton(id: IconName, label: string, onclick: () => void): HTMLButtonElement {
  return button("tool", onclick, { id, "aria-label": label, title: label }, icon(id));
}

export function select(id: string, label: string, onChange: (value: string) => void): HTMLSelectElement {
  const element = h("select", { id, "aria-label": label, onchange: () => onChange(element.value) });
  return element;
}

/** Replace the options of a select; each is a value and its text. */
export function setOptions(element: HTMLSelectElement, options: (readonly [value: string, text: string])[], selected = element.value): void {
  element.replaceChildren(...options.map(([value, text]) => h("option", { value, selected: value === selected }, text)));
}

export function swatch(colour: string): HTMLElement {
  const element = h("span", { className: "swatch", "aria-hidden": "true" });
  element.style.backgroundColor = colour;
  return element;
}

/** `→ dog`, another class that a sample may belong to; null without one. */
export function arrowTo(name: string | undefined): HTMLElement | null {
  return name === undefined ? null : h("span", { className: "among" }, "→ ", h("bdi", {}, name));
}

/** Line icons on a square of 24 units. */
const ICONS = {
  pan: "M12 3v18M3 12h18M12 3l-3 3M12 3l3 3M12 21l-3-3M12 21l3-3M3 12l3-3M3 12l3 3M21 12l-3-3M21 12l-3 3",
  lasso: "M7 18c-3-1-5-3.500-5-6.500C2 7 6.500 4 12 4s10 3 10 7.500S17.500 19 12 19c-1 0-2-.1-3-.3M7 18a2 2 0 1 0 .1 0M7 20c0 1-1 2-2 2",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  density: "M12 11v2M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10zM12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  undo: "M9 14 4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  redo: "m15 14 5-5-5-5M20 9H10a6 6 0 0 0 0 12h3",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.900 4.900l1.400 1.400M17.700 17.700l1.400 1.400M2 12h2M20 12h2M4.900 19.100l1.400-1.400M17.700 6.300l1.400-1.400",
  moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4a8.500 8.500 0 1 0 10.500 10.500z",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4",
  keep: "m5 13 4 4L19 7",
  drop: "M6 6l12 12M18 6 6 18",
  help: "M9 9a3 3 0 1 1 4.500 2.600c-.9.500-1.500 1.200-1.500 2.400M12 17.500v.1M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
} as const;

type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGElement {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" }, svg("path", { d: ICONS[name] }));
}

const format = new Intl.NumberFormat("en");
export const count = (n: number): string => format.format(n);
export const percent = (share: number, digits = 1): string => `${(100 * share).toFixed(digits)} %`;

/** A number with three significant digits or so. */
export function brief(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** Call `action` at most once per animation frame. */
export function perFrame(action: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}
