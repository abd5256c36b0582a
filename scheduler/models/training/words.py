"""The words that the training data is made of; with a few hundred common ones they are the vocabulary."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


JOINED: Final = _words(
    """
    a about after again all also am an and any are as at be before but by can come do does down else first
    for from give go had has have here how i if in into is it its last like look make may me more most
    must my need never new no not now of on one only or other our out over please same should show so some
    such tell than that the their them then there these they this to two up use used want was way we what
    when where which who will with would you your
    """
)
"""Words whose space belongs to the token. They frame sentences and are hardly ever copied; every other word
is one token whether a space, a quote or a line's start stands before it, so that copying it is copying a
token."""

NOUNS: Final = _words(
    """
    drone pump door room robot agent sensor valve engine station gate truck ship plane tower bridge camera
    printer server tank boiler crane lift locker parcel ticket task project team order invoice desk lamp
    machine motor reactor rocket satellite train tunnel vault wagon warehouse shelf box crate battery
    cable antenna filter fan heater mixer probe radar relay router scanner switch tractor turbine winch
    worker
    """
)
ATTRIBUTES: Final = _words(
    """
    code key password serial badge label tag token pin number owner pilot colour word city status
    """
)
NAMES: Final = _words(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jonas Karin Leo Maria Nora Oscar Paula Quentin Rosa
    Simon Tina Ulrich Vera Walter Xenia Yara Zoe Alice Bob Carol Dan Eve Frank Hugo Ivan Julia Kim Lena
    Max Nina Omar Peter Rita Sam Tom Uma Victor Wendy Amir Bella Chen Dora Elias Fatima Goran Hana Igor
    Jane John Mary Lars
    """
)
CITIES: Final = _words(
    """
    Paris Rome Berlin Madrid London Vienna Oslo Lisbon Athens Dublin Prague Warsaw Helsinki Zurich Geneva
    Milan Naples Lyon Hamburg Munich Boston Chicago Denver Seattle Tokyo Kyoto Osaka Seoul Delhi Cairo
    Lagos Nairobi Lima Quito Bogota Havana Toronto Montreal Sydney Perth
    """
)
COLOURS: Final = _words("red green blue yellow black white grey brown pink purple orange silver gold")
PLAIN: Final = _words(
    """
    apple maple river stone cloud garden window silver forest candle anchor basket bottle button carpet
    castle cherry coffee copper cotton desert dragon eagle feather finger flower guitar hammer harbour
    island jacket kettle ladder lemon letter lion marble meadow mirror monkey mountain needle ocean olive
    onion pencil pepper pillow planet pocket potato rabbit rainbow ribbon saddle salmon shadow spider
    spring summer sugar temple thunder tiger tomato tulip turtle valley velvet violin walnut water whale
    wheat willow winter yellow zebra banana bread bird cat dog fish horse house tree sun moon star sand
    snow rain wind fire lake hill road
    """
)
ADJECTIVES: Final = _words(
    """
    small large old young quiet loud warm cold dry wet clean empty full heavy light long short high low
    slow quick careful friendly simple strong soft hard bright dark early late open closed safe ready busy
    free
    """
)
STATES: Final = _words("active idle broken ready open closed busy empty full late lost new")
VERBS: Final = _words(
    """
    moves carries checks cleans covers crosses drives feeds finds fills follows guards helps holds joins
    keeps lifts loads marks meets needs opens paints passes pulls pushes reads repairs sees sends serves
    stops takes tests turns uses visits waits watches writes
    """
)
ADVERBS: Final = _words(
    "today slowly often always together early late outside inside again soon twice daily alone"
)
TOOL_VERBS: Final = _words(
    """
    get find read fetch check look list open close start stop send set add create delete update move book
    cancel count search print save load order call play lock
    """
)
TOOL_NOUNS: Final = _words(
    """
    weather time price temperature balance status location address score forecast stock news file page
    record message mail note event meeting table user account report image song door light alarm timer
    flight hotel room order parcel ticket invoice task contact route distance level speed width weight
    height age size
    """
)
ARGUMENTS: Final = _words(
    """
    city name place country user id key code path query text title subject body date day month year hour
    count amount number limit level size width height weight speed unit colour language topic word item
    room target source address location zone symbol product email phone tag label kind mode
    """
)
UNITS: Final = _words("celsius fahrenheit metres kilometres miles hours minutes euros dollars pounds")
LANGUAGES: Final = _words("English French German Spanish Italian Polish Greek Dutch Swedish Finnish")
SKY: Final = _words("sunny cloudy rainy windy foggy snowy stormy clear")

GENERAL: Final = _words(
    """
    across against air along although around array back base because begin between block bottom break
    buffer build cache car case change child class client color column command common company config
    continue copy cover data debug decode deep def default device disk display domain during east
    education encode end error eye face fact fall false family field follow force format four frame friend
    front function global good graph great group hand head help history hold host however idea import
    index input insert issue join keep know law lead left library life line link local log loop main map
    match memory method model module moment money morning music network next night node none object option
    output package paper parse part party pass pattern people point port power previous private problem
    process program public queue range rate reason remote remove replace reply request research result
    return right round row rule run school second section select service setting shared side since
    sometimes sort square state step story stream string study system take teacher test third thread three
    through top total trace true turn type under until value version view wait war week while within
    without work world write
    """
)
"""Words of filler without meaning."""

ALL: Final = (
    *JOINED, *NOUNS, *ATTRIBUTES, *NAMES, *CITIES, *COLOURS, *PLAIN, *ADJECTIVES, *STATES, *VERBS, *ADVERBS,
    *TOOL_VERBS, *TOOL_NOUNS, *ARGUMENTS, *UNITS, *LANGUAGES, *SKY, *GENERAL,
)  # fmt: skip
