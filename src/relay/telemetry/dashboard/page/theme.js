"use strict";
// Runs before the first paint: the remembered theme, so that the page does not flash.
try {
  const theme = localStorage.getItem("postrider-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* Storage may be forbidden; the theme is the system's then. */ }
