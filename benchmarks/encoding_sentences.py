"""Sentences in five languages, written for benchmarks/encodings.py and in the public domain (CC0)."""

from __future__ import annotations

__all__ = ["SENTENCES"]

KOREAN = """
오늘은 날씨가 참 좋네요.
어제 저녁에 친구와 함께 영화를 보았습니다.
이 책은 언제 돌려주면 되나요?
기차가 십 분 늦게 도착했다.
할머니께서 시장에서 사과와 배를 사 오셨다.
새로운 규칙은 다음 달부터 적용됩니다.
비가 그치면 산책하러 나가자.
그는 아무 말도 없이 문을 닫고 나갔다.
서울에서 부산까지 얼마나 걸립니까?
회의 자료를 메일로 보내 주시면 감사하겠습니다.
고양이가 창가에서 햇볕을 쬐고 있다.
물가가 작년보다 삼 퍼센트 올랐다고 합니다.
저는 커피보다 차를 더 좋아해요.
아이들이 운동장에서 공을 차며 놀고 있었다.
그 질문에 대한 답은 아직 아무도 모른다.
여기에 이름과 주소를 적어 주십시오.
눈이 많이 와서 길이 미끄럽습니다.
우리는 바닷가에서 조개를 주웠다.
컴퓨터가 갑자기 꺼져서 파일을 잃어버렸어요.
선생님은 칠판에 문제를 세 개 쓰셨다.
값이 너무 비싸서 사지 않기로 했다.
네.
안녕하세요?
잘 먹겠습니다.
문 좀 열어 주세요.
"""

JAPANESE = """
今日はとてもいい天気ですね。
昨日の夜、友だちと映画を見ました。
この本はいつ返せばいいですか。
電車が十分遅れて到着した。
祖母は市場でりんごと梨を買ってきた。
新しい規則は来月から適用されます。
雨がやんだら散歩に行きましょう。
彼は何も言わずにドアを閉めて出て行った。
東京から大阪までどのくらいかかりますか？
会議の資料をメールで送っていただけますか。
猫が窓辺で日なたぼっこをしている。
物価は去年より三パーセント上がったそうです。
私はコーヒーよりお茶のほうが好きです。
子どもたちは校庭でボールを蹴って遊んでいた。
その質問の答えはまだ誰も知らない。
ここにお名前とご住所を書いてください。
雪がたくさん降って道がすべりやすい。
パソコンが急に消えて、ファイルがなくなった。
先生は黒板に問題を三つ書いた。
値段が高すぎるので買わないことにした。
はい。
こんにちは。
いただきます。
窓を開けてください。
ホテルの予約をキャンセルしたいのですが。
"""

CHINESE = """
今天天气真好。
昨天晚上我和朋友一起看了电影。
这本书什么时候还给你？
火车晚到了十分钟。
奶奶从市场买来了苹果和梨。
新的规定从下个月开始实行。
雨停了我们就去散步吧。
他什么也没说，关上门走了出去。
从北京到上海要多长时间？
请把会议的材料用邮件发给我。
猫在窗边晒太阳。
据说物价比去年上涨了百分之三。
比起咖啡，我更喜欢喝茶。
孩子们在操场上踢球。
那个问题的答案还没有人知道。
请在这里写上您的姓名和地址。
雪下得很大，路很滑。
我们在海边捡贝壳。
电脑突然关机，文件丢失了。
老师在黑板上写了三道题。
价钱太贵，我决定不买了。
好的。
你好！
谢谢大家的帮助。
请开一下窗户。
"""

TRADITIONAL = """
今天天氣真好。
昨天晚上我和朋友一起看了電影。
這本書什麼時候還給你？
火車晚到了十分鐘。
奶奶從市場買來了蘋果和梨。
新的規定從下個月開始實行。
雨停了我們就去散步吧。
他什麼也沒說，關上門走了出去。
從台北到高雄要多長時間？
請把會議的資料用郵件寄給我。
貓在窗邊曬太陽。
據說物價比去年上漲了百分之三。
比起咖啡，我更喜歡喝茶。
孩子們在操場上踢球。
那個問題的答案還沒有人知道。
請在這裡寫上您的姓名和地址。
雪下得很大，路很滑。
我們在海邊撿貝殼。
電腦突然關機，檔案不見了。
老師在黑板上寫了三道題。
價錢太貴，我決定不買了。
好的。
你好！
謝謝大家的幫助。
請開一下窗戶。
"""

GERMAN = """
Heute ist wirklich schönes Wetter.
Gestern Abend habe ich mit Freunden einen Film über Bären gesehen.
Wann muss ich das Buch zurückgeben?
Der Zug kam zehn Minuten zu spät in Köln an.
Großmutter hat auf dem Markt Äpfel und Birnen gekauft.
Die neuen Regeln gelten ab nächstem Monat.
Wenn der Regen aufhört, gehen wir spazieren.
Er schloss wortlos die Tür und ging hinaus.
Wie lange dauert die Fahrt von München nach Düsseldorf?
Könnten Sie mir die Unterlagen bitte schicken?
Die Katze liegt am Fenster und genießt die Sonne.
Die Preise sind um drei Prozent höher als im Vorjahr.
Ich trinke lieber Tee als Kaffee.
Die Kinder spielten auf dem Schulhof Fußball.
Die Antwort auf diese Frage weiß noch niemand.
Bitte tragen Sie hier Namen und Straße ein.
Es hat viel geschneit, und die Wege sind glatt.
Am Strand sammelten wir Muscheln für später.
Der Rechner ging plötzlich aus, und die Datei war weg.
Die Lehrerin schrieb drei Übungen an die Tafel.
Das war mir zu teuer, also ließ ich es stehen.
Schön!
Grüß Gott.
Öffnen Sie bitte das Fenster.
„Natürlich“, sagte sie, „das können wir ändern.“
"""

RUSSIAN = """
Сегодня очень хорошая погода.
Вчера вечером мы с друзьями смотрели фильм.
Когда нужно вернуть эту книгу?
Поезд опоздал на десять минут.
Бабушка купила на рынке яблоки и груши.
Новые правила вступят в силу в следующем месяце.
Если дождь кончится, пойдём гулять.
Он молча закрыл дверь и вышел.
Сколько времени ехать от Москвы до Казани?
Пришлите мне, пожалуйста, материалы встречи.
Кошка лежит у окна и греется на солнце.
Говорят, цены выросли на три процента.
Я больше люблю чай, чем кофе.
Дети играли во дворе в мяч.
Ответа на этот вопрос пока никто не знает.
Напишите здесь ваше имя и адрес.
Выпало много снега, и дороги скользкие.
Мы собирали ракушки на берегу моря.
Компьютер вдруг выключился, и файл пропал.
Учитель написал на доске три задачи.
Это слишком дорого, поэтому я не стал покупать.
Да.
Здравствуйте!
Спасибо за помощь.
Откройте, пожалуйста, окно.
"""

SENTENCES = {
    "Korean": KOREAN.split("\n")[1:-1],
    "Japanese": JAPANESE.split("\n")[1:-1],
    "Chinese": CHINESE.split("\n")[1:-1],
    "Chinese (traditional)": TRADITIONAL.split("\n")[1:-1],
    "German": GERMAN.split("\n")[1:-1],
    "Russian": RUSSIAN.split("\n")[1:-1],
}
"""Language -> sentences."""
