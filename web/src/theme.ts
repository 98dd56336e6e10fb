/** Light or dark: as the system says, until the person says otherwise. */

const KEY = "thresher-theme";

export function startTheme(): void {
  const asked = new URL(location.href).searchParams.get("theme");
  const chosen = asked ?? remembered();
  const system = matchMedia("(prefers-color-scheme: dark)");
  set(chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light");
}

export function toggleTheme(): void {
  const next = document.documentElement.dataset["theme"] === "dark" ? "light" : "dark";
  set(next);
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage (a sandboxed frame) the choice lasts as long as the page.
  }
}

function set(theme: "light" | "dark"): void {
  document.documentElement.dataset["theme"] = theme;
}

function remembered(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}
