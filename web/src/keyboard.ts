/** Keyboard shortcuts. They are off while the user types. */

export const SHORTCUTS: [keys: string, text: string][] = [
  ["← ↑ → ↓", "move through the gallery"],
  ["k / d", "keep / drop the focused sample, or all picked samples (K / D: always these)"],
  ["o", "among near-copies: keep only the focused one, or drop all copies of a test image"],
  ["c", "give them another class: type its name, number or first letters, then Enter"],
  ["u / r", "undo / redo"],
  ["/", "find a sample by id"],
  ["l", "switch the lasso on or off (or hold Shift)"],
  ["f", "fit the map"],
  ["Esc", "leave a field; else clear the focus, then the picked samples"],
  ["?", "show this list"],
];

/** Call the action of each key pressed; keys are named as in `KeyboardEvent.key`. */
export function listenToKeyboard(actions: Record<string, () => unknown>): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const action = actions[event.key];
    if (action === undefined || target.closest("dialog") !== null) return;
    if (event.key === "Escape") target.blur();
    if (isTyping(target) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
}

function isTyping(target: HTMLElement): boolean {
  if (target instanceof HTMLInputElement) return target.type !== "checkbox";
  return target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
}
