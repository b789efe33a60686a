"""The smallest budget and replay that meet limits on loss with a stated probability."""
