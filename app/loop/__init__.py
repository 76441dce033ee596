"""The tick: observe, forecast, predict, plan, check, bind, fill, push, and its audit lines."""
